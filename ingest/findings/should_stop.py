"""Whether a job should stop: asked from within the job, as often as it likes.

A thread asks, for a store may take a minute until it gives up, or be mounted from a server that is dead: the
training loop waits for an answer for a few seconds at most.
"""

from __future__ import annotations

import http.client
import json
import logging
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from ingest.findings.evidence import CommittedStep, has_evidence
from ingest.findings.severities import at_least
from workers.errors import DumpIngestError, StoreMissing, UsageError

_TIMEOUT_S = 5.0
#: For a whole answer of the page: each of its reads may take `_TIMEOUT_S`.
_ANSWER_S = 30.0
_PIECE_NBYTES = 1 << 20
_MAX_ANSWER_NBYTES = 256 << 20
#: It waits at least this many times as long as the last answer took: a training loop has other work.
_REST = 20.0
_log = logging.getLogger(__name__)


def should_stop(
    url: str,
    *,
    severity: str = "critical",
    every_s: float = 30.0,
    wait_s: float = 5.0,
    since: float = 0.0,
    token: str = "",
) -> bool:
    """Return whether an incident was found whose evidence is committed: every rank has committed its step.

    Cheap enough for every step of a training loop: it asks at most every `every_s` seconds, and returns the
    last answer in between. Once True, it stays True. A store or page that does not answer stops no job and
    holds none up: it is logged, and asked again later.

    Args:
        url: the store, or a run on the page: `http://host:8080/runs/run.zarr`.
        severity: the mildest that counts: `info`, `warning` or `critical`.
        every_s: how often to ask, in seconds; less often if the answer takes long; 0: each time.
        wait_s: how long to wait for an answer, in seconds. One that takes longer is returned by a later call.
        since: a Unix time in seconds. Incidents count whose first step was committed after it: a job that
            goes on in the same store gives the time of its start.
        token: the token of the page, if it demands one.

    Raises:
        UsageError: the URL is that of a page, but not of a run on it; or the severity is not one of these.
    """
    at_least(severity)
    with _LOCK:
        key = (url, severity, since)
        question = _QUESTIONS.setdefault(key, _Question(url, severity, since, _page_of(url), token))
    return question.ask(every_s, wait_s)


def _page_of(url: str) -> str:
    """Return the URL under which a page answers questions about a run; "" for the URL of a store.

    Raises:
        UsageError: the URL is that of a page, but not of a run on it.
    """
    if not url.startswith(("http://", "https://")):
        return ""
    parts = urlsplit(url)
    base, is_run, name = parts.path.partition("/runs/")
    name = name.strip("/").partition("/")[0]
    if not is_run or not name:
        raise UsageError(
            f"{url} is not a run on a page",
            hint="Name one as http://HOST:PORT/runs/NAME, or a store.",
        )
    return f"{parts.scheme}://{parts.netloc}{base}/api/v1/runs/{quote(name, safe='%')}"


@dataclass(eq=False)
class _Question:
    url: str
    severity: str
    since: float
    page: str
    """Under what URL the page answers; "" for a store."""
    token: str
    _answer: bool = False
    _asked_at: float = float("-inf")
    _took_s: float = 0.0
    _asking: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, every_s: float, wait_s: float) -> bool:
        with self._lock:
            pause_s = max(every_s, _REST * self._took_s) if every_s else 0.0
            is_due = not self._answer and time.monotonic() - self._asked_at >= pause_s
            asking = None
            if is_due and self._asking is None:
                self._asked_at = time.monotonic()
                asking = self._asking = threading.Thread(
                    target=self._ask_now, name="dump-ingest-should-stop", daemon=True
                )
                asking.start()
        if asking is not None:
            asking.join(wait_s)
        return self._answer

    def _ask_now(self) -> None:
        answer = False
        try:
            answer = self._ask_page() if self.page else self._ask_store()
        except (
            DumpIngestError,
            OSError,
            http.client.HTTPException,
            ValueError,
            LookupError,
            TypeError,
        ) as exc:
            _log.warning("dump-ingest does not answer at %s: %s", self.url, exc)
        finally:
            with self._lock:
                self._answer = answer
                self._took_s = time.monotonic() - self._asked_at
                self._asking = None

    def _ask_store(self) -> bool:
        # Deferred: numba and zarr, 0.35 s of processor time, which a job that asks the page does not need.
        from ingest.findings.waiting import first_with_evidence
        from ingest.reader.dump_store import open_store

        try:
            store = open_store(self.url)
        except StoreMissing:
            return False  # the watcher makes it with the first commit
        return first_with_evidence(store, self.severity, self.since) is not None

    def _ask_page(self) -> bool:
        listed = self._fetch("incidents", severity=self.severity)
        if not listed:
            return False
        committed = [
            CommittedStep(row["rank"], row["step"], _time_of(row["committed_at"]))
            for row in self._fetch("steps")
            if row["step"] is not None
        ]
        return any(has_evidence(committed, row["first_step"], self.since) for row in listed)

    def _fetch(self, question: str, **parameters: str) -> list[dict[str, Any]]:
        query = f"?{urlencode(parameters)}" if parameters else ""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(f"{self.page}/{question}{query}", headers=headers)  # noqa: S310  (http or https)
        deadline = time.monotonic() + _ANSWER_S
        content = bytearray()
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310  (http or https)
            while piece := answer.read1(_PIECE_NBYTES):
                content += piece
                if time.monotonic() > deadline or len(content) > _MAX_ANSWER_NBYTES:
                    message = f"its answer about {question} does not end"
                    raise TimeoutError(message)
        return list(json.loads(content))


def _time_of(text: str) -> float:
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


#: By URL, severity and time; the only owner of what was answered last.
_QUESTIONS: dict[tuple[str, str, float], _Question] = {}
_LOCK = threading.Lock()
