"""Checks of watchers and consolidators that run, by what they serve next to their metrics."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from ingest.doctor.check import Check
from ingest.doctor.store_checks import MAX_LAG_S
from ingest.reader.text import counted
from ingest.service.process_address import FROM_HINT, process_address

_ANSWER_S = 5.0
#: How long a process may do nothing before it hangs, by its heartbeat, in seconds.
_HANGS_S = 120.0
#: A process that is younger may have been restarted again and again, in seconds.
_YOUNG_S = 120.0
_METRICS, _READY = "/metrics", "/ready"
_GONE_HINT = (
    "Look why it ended or was never started: `systemctl status`, `kubectl get pods` (Pending, Evicted, "
    "CrashLoopBackOff), `squeue`; its last log lines say the rest. Exit code 137: raise its memory limit. "
    "Then start it. If it runs, compare the port, and look for a firewall."
)
_HANGS_HINT = "Restart it. Before, look whether the file system of the dump and the store answer on its host."


@dataclass(frozen=True, slots=True)
class _Metrics:
    """What a process serves at `/metrics`."""

    values: Mapping[str, list[float]]
    """By name of a series: its values."""
    store: str

    @classmethod
    def parse(cls, text: str) -> _Metrics:
        """Parse a page of metrics.

        Raises:
            ValueError: it is not a page of metrics.
        """
        values: dict[str, list[float]] = {}
        store = ""
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values.setdefault(sample.name, []).append(sample.value)
                store = sample.labels.get("store", store)
        return cls(values, store)

    def one(self, name: str) -> float:
        """Return the value of a series of which there is one, or the smallest; 0 if there is none."""
        return min(self.values.get(f"dump_ingest_{name}", ()), default=0.0)

    def total(self, name: str) -> float:
        """Return the sum of several series."""
        return sum(self.values.get(f"dump_ingest_{name}", ()))

    @property
    def role(self) -> str:
        """What the process is; "" for none of ours."""
        roles = {"watcher": "watcher_ranks", "consolidator": "consolidator_lease_held"}
        return next((role for role, name in roles.items() if f"dump_ingest_{name}" in self.values), "")

    @property
    def age_s(self) -> float:
        """How long ago the process was started, by its own clock."""
        return self.one("time_seconds") - min(self.values.get("process_start_time_seconds", (0.0,)))


def check_process(url: str, store: str, *, is_view_kept: bool) -> Check:
    """Say whether a process answers, makes progress, and has the same store.

    Args:
        url: where it serves its metrics, such as `http://host:9108`.
        store: the URL of the store that it should have, without credentials; "" if none is named.
        is_view_kept: whether somebody holds the lease of the consolidated view.

    Raises:
        UsageError: the URL is not one of a web server.
    """
    address = process_address(url)
    try:
        status, page = _get(f"{address}{_METRICS}")
        metrics = _Metrics.parse(page if status == http.client.OK else "")
        ready, reason = _get(f"{address}{_READY}")
    except TimeoutError:
        detail = f"{address} accepts connections, and gives no answer in {_ANSWER_S:g} s: it hangs"
        return Check("process", ok=False, detail=detail, hint=_HANGS_HINT)
    except (OSError, http.client.HTTPException) as exc:
        detail = f"nobody answers at {address}: {getattr(exc, 'reason', None) or exc}"
        return Check("process", ok=False, detail=detail, hint=_GONE_HINT)
    except ValueError:
        metrics = _Metrics({}, "")
    if not metrics.role:
        refused = "" if status == http.client.OK else f": it answers {_METRICS} with status {status}"
        detail = f"{address} is not a watcher or consolidator{refused}"
        return Check("process", ok=False, detail=detail, hint=FROM_HINT)
    name = f"{metrics.role} at {address}"
    if ready != http.client.OK:
        hint = "Run `dump-ingest doctor DUMP` as its user: it says what to change."
        return _failure(name, reason.strip(), hint)
    judges: Iterable[Callable[[], Check | None]] = (
        lambda: _hang(name, metrics),
        lambda: _other_store(name, metrics, store),
        lambda: _work(name, metrics, is_view_kept=is_view_kept),
    )
    return next((check for judge in judges if (check := judge())), _success(name, metrics))


def _hang(name: str, metrics: _Metrics) -> Check | None:
    silent_s = metrics.one("time_seconds") - metrics.one("heartbeat_timestamp_seconds")
    if silent_s <= _HANGS_S:
        return None
    return _failure(name, f"has made no progress for {silent_s:.0f} s", _HANGS_HINT)


def _other_store(name: str, metrics: _Metrics, store: str) -> Check | None:
    if not store or metrics.store == store:
        return None
    hint = (
        "Give all processes of a run the same setting `store`, and restart those that have a different one."
    )
    return _failure(name, f"has the store {metrics.store}, and not {store}", hint)


def _work(name: str, metrics: _Metrics, *, is_view_kept: bool) -> Check | None:
    """Return what is wrong with the work of a process that makes progress."""
    if metrics.role == "consolidator":
        is_idle = not metrics.one("consolidator_lease_held") and not is_view_kept
        if not is_idle or metrics.age_s <= _YOUNG_S:
            return None
        hint = (
            f"The store does not exist under its URL, {metrics.store}, or does not answer there: its log "
            "line `waiting` says which. Correct the setting `store`."
        )
        return _failure(name, "holds no lease, and nobody else does", hint)
    if not metrics.one("watcher_last_look_timestamp_seconds"):
        if metrics.age_s <= _YOUNG_S:
            return None
        hint = "Run `dump-ingest doctor DUMP` on its host with its DUMP: it says why that is not a dump."
        return _failure(name, f"has seen no dump since it started {metrics.age_s:.0f} s ago", hint)
    lag_s = metrics.one("time_seconds") - metrics.one("watcher_oldest_pending_timestamp_seconds")
    waiting = int(metrics.total("watcher_pending_steps"))
    if waiting and lag_s > MAX_LAG_S:
        steps = f"{counted(waiting, 'step')} wait{'s' if waiting == 1 else ''}"
        hint = f"Ask why: dump-ingest watch --explain --from {name.rpartition(' ')[2]}"
        return _failure(name, f"{steps} for a commit, the oldest for {lag_s:.0f} s", hint)
    return None


def _success(name: str, metrics: _Metrics) -> Check:
    age_s = metrics.age_s
    detail = f"{name}: makes progress; started {age_s:.0f} s ago"
    hint = (
        "If nobody restarted it, it restarts again and again: look at the end of its log before the last "
        "start. Exit code 137: raise its memory limit."
    )
    return Check("process", ok=True, detail=detail, hint=hint if age_s <= _YOUNG_S else "")


def _failure(name: str, detail: str, hint: str) -> Check:
    return Check("process", ok=False, detail=f"{name}: {detail}", hint=hint)


def _get(address: str) -> tuple[int, str]:
    """Return status and text of a page.

    Raises:
        TimeoutError: no answer came in time.
        OSError: nobody listens.
        HTTPException: what answers does not speak HTTP.
    """
    try:
        with urllib.request.urlopen(address, timeout=_ANSWER_S) as answer:  # noqa: S310 (http or https)
            return int(answer.status), answer.read().decode(errors="replace")
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode(errors="replace")
    except urllib.error.URLError as exc:
        if isinstance(exc.reason, TimeoutError):
            raise exc.reason from exc
        raise
