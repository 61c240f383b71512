"""Single causes that raise several alerts, and what is sent of them: one message, to those who can act."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.alerts import (
    BREAK,
    C1,
    CLOCK,
    K1,
    OLD_CLOCK,
    S1,
    STOPPED,
    W1,
    W2,
    a_watcher,
    breaking,
    c1,
    down,
    gone,
    growing,
    healthy,
    series,
    shipped_alerts,
    w1,
)

Alert = dict[str, str]
Changes = dict[str, str | None]

_LABELS = {rule["alert"]: rule["labels"] for rule in shipped_alerts()}
_RUN = {"run": "a", "namespace": "train"}
_RANKS = ((W1, "0"), (W1, "1"), (W2, "2"), (W2, "3"))
#: When everything has been raised: commits that stall take half an hour.
_DUE = BREAK + 45


@dataclass(frozen=True)
class Cause:
    """What goes wrong in one run."""

    name: str
    changes: Mapping[str, str | None]
    """By selector: the values of series that differ from those of a healthy run; None for no series."""
    raised: tuple[Alert, ...]
    """The labels of all alerts that fire then."""
    sent: frozenset[tuple[str, str]]
    """The receivers and the names of the alerts that Alertmanager sends."""

    def raised_in(self, run: str) -> list[Alert]:
        """Return the alerts, raised in another run."""
        return [
            {name: re.sub(r"^a(?=$|/)", run, value) for name, value in alert.items()} for alert in self.raised
        ]


def _selector(labels: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def _raised(name: str, *where: Mapping[str, str], **labels: str) -> list[Alert]:
    """Return an alert at several places."""
    full = f"DumpIngest{name}"
    return [{"alertname": full, **_LABELS[full], **place, **labels} for place in where or [_RUN]]


def _of_ranks(name: str) -> list[Alert]:
    """Return an alert of all ranks."""
    return [alert for watcher, rank in _RANKS for alert in _raised(name, watcher, rank=rank)]


def _of_job(name: str, one: Mapping[str, str]) -> list[Alert]:
    """Return an alert of a whole job."""
    return _raised(name, {label: value for label, value in one.items() if label != "instance"})


def _sent(receiver: str, *names: str) -> frozenset[tuple[str, str]]:
    return frozenset((receiver, f"DumpIngest{name}") for name in names)


def _failing(metric: str, *where: Mapping[str, str], **labels: str) -> Changes:
    """Return a counter that grows from the break on."""
    return {series(f"dump_ingest_{metric}", one, **labels): breaking("0+0x{n}", "1+1x{n}") for one in where}


def _standing_still(*ranks: tuple[Mapping[str, str], str]) -> Changes:
    """Return ranks whose steps wait from the break on."""
    name = "dump_ingest_watcher_"
    changes: Changes = {}
    for watcher, rank in ranks:
        changes[series(f"{name}oldest_pending_timestamp_seconds", watcher, rank=rank)] = OLD_CLOCK
        changes[series(f"{name}last_commit_timestamp_seconds", watcher, rank=rank)] = OLD_CLOCK
        changes[series(f"{name}pending_steps", watcher, rank=rank)] = breaking("0+0x{n}", "1+1x{n}")
    return changes


def _left_behind(*ranks: str) -> Changes:
    """Return ranks that commit nothing any more while others go on, by the store."""
    changes: Changes = {}
    for rank in ranks:
        changes |= c1("rank_steps_behind", breaking("0+0x{n}", "0+0.5x{n}"), rank=rank)
        changes |= c1("committed_step", STOPPED, rank=rank)
    return changes


_ATTEMPTS: Changes = {series("dump_ingest_convert_attempts_total", K1): growing(1)}
_AHEAD = {
    selector: growing(60, 960) for selector, values in a_watcher(W1, ("0", "1")).items() if values == CLOCK
}

CAUSES = (
    Cause(
        "credentials that expire everywhere",
        {
            **_standing_still(*_RANKS),
            **_failing("store_request_errors_total", W1, W2, C1, K1, op="get", reason="store_denied"),
            **_failing("watcher_step_failures_total", W1, W2, reason="store_denied"),
            **_failing("convert_failures_total", K1, reason="store_denied"),
            **_ATTEMPTS,
            **c1("last_round_timestamp_seconds", OLD_CLOCK),
        },
        (
            *_raised("StoreDenied", W1, W2, C1, K1),
            *_of_ranks("LagHigh"),
            *_of_ranks("CommitsStalled"),
            *_raised("CommitsFailing", W1, W2, reason="store_denied"),
            *_raised("ConversionsFailing", K1),
            *_raised("ConsolidatorBehind", C1),
        ),
        _sent("platform-on-call", "StoreDenied"),
    ),
    Cause(
        "a bucket whose quota is used up, which is a ticket until commits have stopped for half an hour",
        {
            **_standing_still(*_RANKS),
            **_failing("store_request_errors_total", K1, op="put", reason="store_unavailable"),
            **_failing("watcher_step_failures_total", W1, W2, reason="store_unavailable"),
            **_failing("convert_failures_total", K1, reason="store_unavailable"),
            **_ATTEMPTS,
        },
        (
            *_raised("StoreErrors", K1, op="put"),
            *_of_ranks("LagHigh"),
            *_of_ranks("CommitsStalled"),
            *_raised("CommitsFailing", W1, W2, reason="store_unavailable"),
            *_raised("ConversionsFailing", K1),
        ),
        _sent("platform-tickets", "StoreErrors") | _sent("platform-on-call", "CommitsStalled"),
    ),
    Cause(
        "a store that takes twice as long, and refuses nothing",
        {
            series("dump_ingest_watcher_oldest_pending_timestamp_seconds", watcher, rank=rank): (
                f"0+60x{BREAK - 1} {60 * (BREAK - 1)}+30x600"
            )
            for watcher, rank in _RANKS
        },
        tuple(_of_ranks("LagHigh")),
        _sent("platform-tickets", "LagHigh"),
    ),
    Cause(
        "a scheduler that is evicted for good",
        {
            **gone(S1),
            **_standing_still(*_RANKS),
            **_failing("watcher_troubles_total", W1, W2, reason="cluster"),
        },
        (
            *_of_job("TargetsLost", S1),
            *_of_ranks("LagHigh"),
            *_of_ranks("CommitsStalled"),
            *_raised("ClusterUnreachable", W1, W2),
        ),
        _sent("platform-on-call", "TargetsLost"),
    ),
    Cause(
        "all workers are gone",
        {
            **gone(K1),
            **_standing_still(*_RANKS),
            **_failing("watcher_troubles_total", W1, W2, reason="cluster"),
            series("dask_scheduler_workers", S1, state="idle"): breaking("1+0x{n}", "0+0x{n}"),
        },
        (
            *_raised("NoDaskWorkers", S1),
            *_of_ranks("LagHigh"),
            *_of_ranks("CommitsStalled"),
            *_raised("ClusterUnreachable", W1, W2),
        ),
        _sent("platform-on-call", "NoDaskWorkers"),
    ),
    Cause(
        "a worker that is killed for its memory every three minutes",
        {
            series("process_start_time_seconds", K1): f"1+0x{BREAK - 1} "
            + " ".join(f"{60 * (BREAK + 3 * n)}+0x2" for n in range(30)),
            **_failing("watcher_step_failures_total", W1, reason="cluster"),
        },
        (*_raised("Restarting", K1), *_raised("CommitsFailing", W1, reason="cluster")),
        _sent("platform-on-call", "Restarting"),
    ),
    Cause(
        "one of four ranks dies while the others go on",
        {**w1("steps_behind", breaking("0+0x{n}", "0+0.5x{n}"), rank="1"), **_left_behind("1")},
        (*_raised("RankStalled", W1, rank="1"), *_raised("RankBehind", C1, rank="1")),
        _sent("trainer-tickets", "RankStalled"),
    ),
    Cause(
        "a host is lost with its ranks, and others go on",
        {**down(W1), **_left_behind("0", "1")},
        (
            *_raised("WatcherDown", W1),
            *_raised("RankBehind", C1, rank="0"),
            *_raised("RankBehind", C1, rank="1"),
        ),
        _sent("platform-on-call", "WatcherDown"),
    ),
    Cause(
        "the file system of the dump hangs on one host",
        {
            series("dump_ingest_heartbeat_timestamp_seconds", W1): OLD_CLOCK,
            **w1("last_look_timestamp_seconds", OLD_CLOCK),
            **_standing_still((W1, "1")),
        },
        (
            *_raised("WatcherStuck", W1),
            *_raised("LagHigh", W1, rank="1"),
            *_raised("CommitsStalled", W1, rank="1"),
        ),
        _sent("platform-on-call", "WatcherStuck"),
    ),
    Cause(
        "only the consolidator is left",
        gone(W1, W2, S1, K1),
        (*_of_job("TargetsLost", W1), *_of_job("TargetsLost", S1), *_raised("NoWatchers")),
        _sent("platform-on-call", "TargetsLost"),
    ),
    Cause(
        "a clock that is sixteen minutes ahead, so that S3 refuses its requests",
        {
            **_AHEAD,
            **_failing("watcher_step_failures_total", W1, reason="clock_skew"),
            **_failing("store_request_errors_total", W1, op="put", reason="clock_skew"),
        },
        (*_raised("ClockOff", W1), *_raised("CommitsFailing", W1, reason="clock_skew")),
        _sent("platform-tickets", "ClockOff"),
    ),
    Cause(
        "a NaN in every step, which makes other rules fire",
        {
            series(f"dump_ingest_last_finding_{name}", teller, rank=rank, rule=rule, severity=severity): (
                growing(by)
            )
            for name, by in (("step", 1), ("timestamp_seconds", 60))
            for teller, rank, rule, severity in (
                (W1, "0", "nan", "critical"),
                (W2, "2", "nan", "critical"),
                (W1, "0", "gradient_zero", "warning"),
                (C1, "all", "loss_jumps", "warning"),
            )
        },
        (
            *_raised("NotFinite", rank="0"),
            *_raised("NotFinite", rank="2"),
            *_raised("WarningFinding", rank="0", rule="gradient_zero"),
            *_raised("WarningFinding", rank="all", rule="loss_jumps"),
        ),
        _sent("trainer-on-call", "NotFinite"),
    ),
)


def by_run() -> dict[str, Cause]:
    """Return all causes, each with the name of a run of its own."""
    return {f"c{number}": cause for number, cause in enumerate(CAUSES)}


def causes_tests(rules_file: str) -> dict[str, Any]:
    """Return the file that `promtool test rules` reads: all causes at once, each in its run."""
    input_series, questions = [], []
    for run, cause in by_run().items():
        for selector, values in {**healthy(), **cause.changes}.items():
            if values is not None:
                renamed = re.sub(r'(run|job)="a(?=["/])', rf'\1="{run}', selector)
                input_series.append({"series": renamed, "values": values})
        expected = [
            {"labels": f"ALERTS{_selector({**alert, 'alertstate': 'firing'})}", "value": 1}
            for alert in cause.raised_in(run)
        ]
        asked = f'ALERTS{{alertstate="firing", run="{run}"}}'
        questions.append({"expr": asked, "eval_time": f"{_DUE}m", "exp_samples": expected})
    test = {"interval": "1m", "input_series": input_series, "promql_expr_test": questions}
    return {"rule_files": [rules_file], "evaluation_interval": "1m", "tests": [test]}
