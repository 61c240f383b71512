"""What a running watcher serves next to its metrics, fetched: its steps, lag, backlog and disk."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from ingest.layouts.black_box import BlackBoxes
from ingest.steps.decide import StepRow
from ingest.steps.state import Phase
from workers.errors import DumpIngestError, UsageError

FROM_HINT = (
    "Name where it serves its metrics (the setting metrics, or consolidator_metrics): --from HOST:PORT."
)


def process_address(url: str) -> str:
    """Return scheme, host and port of a URL, or of `host:9108`: `http://host:9108`.

    Raises:
        UsageError: it is neither the URL of a web server nor a host with a port.
    """
    has_scheme = "://" in url
    try:
        parts = urlsplit(url if has_scheme else f"http://{url}")
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or not (has_scheme or port):
        raise UsageError(f"{url!r} is not the address of a watcher or consolidator", hint=FROM_HINT)
    return f"{parts.scheme}://{parts.netloc}"


class _Page(msgspec.Struct):
    steps: list[StepRow]
    boxes: BlackBoxes = BlackBoxes()


#: Where the page is, next to `/metrics`.
PATH = "/steps"
_TIMEOUT_S = 30.0


def fetch_steps(url: str) -> list[StepRow]:
    """Return the rows of a running watcher.

    Args:
        url: where it serves its metrics, such as `http://host:9108`.

    Raises:
        UsageError: the URL is not one of a web server.
        DumpIngestError: nobody answers there, or no watcher does.
    """
    return _fetch(url, _TIMEOUT_S).steps


def _fetch(url: str, timeout_s: float) -> _Page:
    page = fetch_page(url, PATH, timeout_s)
    try:
        # What a later version has added is left out.
        return msgspec.json.decode(page, type=_Page)
    except msgspec.MsgspecError as exc:
        address = f"{process_address(url)}{PATH}"
        raise DumpIngestError(f"{address} is not served by a watcher", hint=FROM_HINT) from exc


def fetch_page(url: str, path: str, timeout_s: float) -> bytes:
    """Fetch a page of a running watcher.

    Raises:
        UsageError: the URL is not one of a web server.
        DumpIngestError: nobody answers there, or no watcher does.
    """
    address = f"{process_address(url)}{path}"
    try:
        status, page = get(address, timeout_s)
    except (OSError, http.client.HTTPException) as exc:
        reason = getattr(exc, "reason", None) or exc
        raise DumpIngestError(f"no watcher answers at {address}: {reason}", hint=FROM_HINT) from exc
    if status != http.client.OK:
        raise DumpIngestError(f"{address} is not served by a watcher: status {status}", hint=FROM_HINT)
    return page


def get(address: str, timeout_s: float) -> tuple[int, bytes]:
    """Return status and content of a page.

    Raises:
        TimeoutError: no answer came in time.
        OSError: nobody listens.
        HTTPException: what answers does not speak HTTP.
    """
    try:
        with urllib.request.urlopen(address, timeout=timeout_s) as answer:  # noqa: S310 (http or https)
            return int(answer.status), bytes(answer.read())
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read()
    except urllib.error.URLError as exc:
        if isinstance(exc.reason, TimeoutError):
            raise exc.reason from exc
        raise


def metrics_of(text: str) -> dict[str, dict[str, float]]:
    """Return by name the values of a metric, by the value of its only label; "" without a label.

    Raises:
        ValueError: this is not a page of metrics.
    """
    values: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values.setdefault(sample.name, {})["".join(sample.labels.values())] = sample.value
    return values


def store_in(metrics: Mapping[str, Iterable[str]]) -> str:
    """Return the URL of the store of a process, from its metrics."""
    return next(iter(metrics.get("dump_ingest_store_info", ())), "")


_PREFIX = "dump_ingest_watcher_"
#: Phases in which nothing more happens to a step.
_SETTLED = frozenset(
    phase.value for phase in (Phase.COMMITTED, Phase.LEFT_OUT, Phase.KEPT, Phase.REMOVED, Phase.UNLISTED)
)


@dataclass(frozen=True, slots=True)
class RankProgress:
    """How far a watcher is with a rank."""

    rank: str
    """Its number; `other` for all ranks beyond the first 1024 of a watcher."""
    lag_s: float
    """How long ago the oldest step that is not committed was written, in seconds; 0 if there is none."""
    newest_step: int
    """The highest step that has files or is committed; -1 for none."""
    committed_step: int
    """The highest step that is committed; -1 for none."""
    steps_behind: int
    """How many steps other ranks have written since this one wrote last."""
    pending_steps: int
    pending_files: int
    pending_bytes: int


@dataclass(frozen=True, slots=True)
class DumpDisk:
    """The file system of a dump."""

    free_bytes: int
    size_bytes: int
    under_pressure: bool
    """Whether less is free than the setting `pressure_free` says."""


@dataclass(frozen=True, slots=True)
class LiveWatcher:
    """A watcher at one moment. The names of the fields are those of its JSON."""

    url: str
    problem: str = ""
    """Why nothing is known of it; "" if it answered."""
    store: str = ""
    """The URL of its store."""
    ranks: tuple[RankProgress, ...] = ()
    disk: DumpDisk | None = None
    """None before its first scan."""
    steps: tuple[StepRow, ...] = ()
    """The steps that are not settled: each has a phase, and why it is in it."""
    settled: int = 0
    """How many steps are."""
    boxes: BlackBoxes = field(default_factory=BlackBoxes)
    """The black boxes in the processes of the job."""


def fetch_watcher(url: str, timeout_s: float) -> LiveWatcher:
    """Fetch the state of a watcher; with a `problem` if it does not answer.

    Args:
        url: where it serves its metrics, such as `http://host:9108`.
        timeout_s: how long to wait for each of its two answers, in seconds.
    """
    try:
        page = _fetch(url, timeout_s)
        watcher = parse_watcher(url, fetch_page(url, "/metrics", timeout_s).decode(), page.steps)
        return replace(watcher, boxes=page.boxes)
    except DumpIngestError as exc:
        return LiveWatcher(url, exc.message)
    except UnicodeDecodeError as exc:
        return LiveWatcher(url, f"no watcher answers at {url}/metrics: {exc}")


def parse_watcher(url: str, metrics: str, rows: Iterable[StepRow]) -> LiveWatcher:
    """Parse the metrics of a watcher and the rows of its steps.

    Raises:
        DumpIngestError: they are not metrics.
    """
    try:
        values = metrics_of(metrics)
        now = values.get("dump_ingest_time_seconds", {}).get("", 0.0)
        labels = values.get(f"{_PREFIX}pending_steps", {})
        in_order = sorted(
            labels, key=lambda label: (not label.isdigit(), int(label) if label.isdigit() else 0)
        )
        ranks = tuple(_rank(label, now, values) for label in in_order)
        free, size = (values.get(f"{_PREFIX}disk_{name}_bytes", {}).get("") for name in ("free", "size"))
        is_full = any(values.get(f"{_PREFIX}under_pressure", {}).values())
        disk = None if free is None or size is None else DumpDisk(int(free), int(size), is_full)
    except (ValueError, OverflowError) as exc:
        raise DumpIngestError(f"{url}/metrics is not served by a watcher") from exc
    all_rows = list(rows)
    open_rows = tuple(row for row in all_rows if row.phase not in _SETTLED)
    settled = len(all_rows) - len(open_rows)
    return LiveWatcher(url, "", store_in(values), ranks, disk, open_rows, settled)


def _rank(label: str, now: float, values: Mapping[str, Mapping[str, float]]) -> RankProgress:
    def of_rank(name: str, default: float = 0) -> float:
        return values.get(f"{_PREFIX}{name}", {}).get(label, default)

    pending = int(of_rank("pending_steps"))
    oldest = of_rank("oldest_pending_timestamp_seconds", now)
    return RankProgress(
        rank=label,
        lag_s=max(now - oldest, 0.0) if pending else 0.0,
        newest_step=int(of_rank("newest_step", -1)),
        committed_step=int(of_rank("committed_step", -1)),
        steps_behind=int(of_rank("steps_behind")),
        pending_steps=pending,
        pending_files=int(of_rank("pending_files")),
        pending_bytes=int(of_rank("pending_bytes")),
    )
