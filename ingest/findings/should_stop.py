"""Whether a job should stop: asked from within the job, as often as it likes."""

from __future__ import annotations

import http.client
import json
import logging
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from ingest.findings.waiting import first_with_evidence, newest_steps
from ingest.reader.catalog import open_catalog
from workers.errors import DumpIngestError, UsageError
from workers.model import StepKey

_TIMEOUT_S = 5.0
#: It waits at least this many times as long as the last answer took: a training loop has other work.
_REST = 20.0
_log = logging.getLogger(__name__)


def should_stop(url: str, *, severity: str = "critical", every_s: float = 30.0, token: str = "") -> bool:
    """Return whether an incident was found whose evidence is committed: every rank has committed its step.

    Cheap enough for every step of a training loop: it asks at most every `every_s` seconds, and returns the
    last answer in between. Once True, it stays True. A store or page that does not answer stops no job: it
    is logged, and asked again later.

    Args:
        url: the store, or a run on the page: `http://host:8080/runs/run.zarr`.
        severity: the mildest that counts: `info`, `warning` or `critical`.
        every_s: how often to ask, in seconds; less often if the answer takes long; 0: each time.
        token: the token of the page, if it demands one.

    Raises:
        UsageError: the URL is that of a page, but not of a run on it.
    """
    with _LOCK:
        question = _QUESTIONS.setdefault((url, severity), _Question(url, severity, token))
    return question.ask(every_s)


@dataclass(eq=False)
class _Question:
    """One store or run, and what it answered last."""

    url: str
    severity: str
    token: str
    _answer: bool = False
    _asked_at: float = float("-inf")
    _took_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, every_s: float) -> bool:
        with self._lock:
            began = time.monotonic()
            pause_s = max(every_s, _REST * self._took_s) if every_s else 0.0
            if not self._answer and began - self._asked_at >= pause_s:
                try:
                    self._answer = self._ask_now()
                except UsageError:
                    if self.url.startswith(("http://", "https://")):
                        raise
                    # The store does not exist yet: the watcher makes it with the first commit.
                except (DumpIngestError, OSError, http.client.HTTPException, ValueError) as exc:
                    _log.warning("dump-ingest does not answer at %s: %s", self.url, exc)
                self._asked_at = time.monotonic()
                self._took_s = self._asked_at - began
            return self._answer

    def _ask_now(self) -> bool:
        if not self.url.startswith(("http://", "https://")):
            return first_with_evidence(open_catalog(self.url), self.severity) is not None
        listed = self._fetch("incidents", severity=self.severity)
        if not listed:
            return False
        newest = newest_steps(StepKey(row["rank"], row["step"]) for row in self._fetch("steps"))
        return any(all(step >= row["first_step"] for step in newest.values()) for row in listed)

    def _fetch(self, question: str, **parameters: str) -> list[dict[str, Any]]:
        """Return what the page answers.

        Raises:
            UsageError: the URL is not one of a run on a page.
        """
        parts = urlsplit(self.url)
        base, is_run, name = parts.path.partition("/runs/")
        name = name.strip("/").partition("/")[0]
        if not is_run or not name:
            raise UsageError(
                f"{self.url} is not a run on a page",
                hint="Name one as http://HOST:PORT/runs/NAME, or a store.",
            )
        query = f"?{urlencode(parameters)}" if parameters else ""
        path = f"{base}/api/v1/runs/{quote(name, safe='%')}/{question}{query}"
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(f"{parts.scheme}://{parts.netloc}{path}", headers=headers)  # noqa: S310  (http or https)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310  (http or https)
            rows = json.loads(answer.read())
        return list(rows)


#: By URL and severity; the only owner of what was answered last.
_QUESTIONS: dict[tuple[str, str], _Question] = {}
_LOCK = threading.Lock()
