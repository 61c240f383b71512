"""States of a deployment, as metrics show them, and the alerts that each of them must and must not raise.

Each state is a run that is well and breaks, at `BREAK` minutes or from its beginning. `promtool` evaluates
the shipped rules over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.alert_series import (
    ALL,
    BREAK,
    BROKEN_AT_BREAK,
    C1,
    C2,
    CLOCK,
    END,
    IDLE,
    K1,
    K2,
    LEFT,
    OLD_CLOCK,
    S1,
    STOPPED,
    STORE,
    W1,
    W2,
    a_consolidator,
    a_watcher,
    begun_at_break,
    belongs_to,
    breaking,
    c1,
    constant,
    cut,
    down,
    gone,
    growing,
    healthy,
    never,
    renamed,
    series,
    target,
    w1,
)

#: How soon somebody must know, in minutes.
WITHIN = 15


@dataclass(frozen=True)
class State:
    """One state of a deployment."""

    name: str
    changes: Mapping[str, str | None]
    """By selector: the values of series that differ from those of a healthy run; None for no series."""
    fires: frozenset[str] = frozenset()
    """The alerts, without `DumpIngest`, that fire within `WITHIN` minutes after the break, and no others."""
    from_start: bool = False
    """Whether it is broken from its first minute, so that the alerts are due at `WITHIN`."""
    due: int = 0
    """The minute at which the alerts are due, if that is neither of these."""
    later: frozenset[str] = frozenset()
    """Alerts that may join: they tell the same in another way."""
    spares: frozenset[str] = frozenset()
    """Alerts for which it is a near miss."""

    def case(self, end: int) -> dict[str, Any]:
        """Return the state as a test of promtool that looks at the alerts until a minute."""
        due = self.due or (WITHIN if self.from_start else BREAK + WITHIN)
        others = "|".join(f"DumpIngest{name}" for name in sorted(self.later)) or "none"
        fired = f'ALERTS{{alertstate="firing", alertname!~"{others}"}}'
        expected = [
            {"labels": f'{{alertname="DumpIngest{name}"}}', "value": 1} for name in sorted(self.fires)
        ]
        merged = {**healthy(), **self.changes}
        return {
            "name": self.name,
            "interval": "1m",
            "input_series": [
                {"series": selector, "values": values}
                for selector, values in merged.items()
                if values is not None
            ],
            "promql_expr_test": [
                {
                    "expr": f"group by (alertname) (count_over_time({fired}[{minute}m]))",
                    "eval_time": f"{minute}m",
                    "exp_samples": expected,
                }
                for minute in sorted({due, end} if end > due else {due})
            ],
        }


def _alerts(*names: str) -> frozenset[str]:
    return frozenset(names)


def _steps_apart(apart: int) -> dict[str, str | None]:
    """Return a job that ends while rank 1 has written fewer steps than the others."""
    return {
        **IDLE,
        **w1("steps_behind", breaking("0+0x{n}", f"{apart}+0x{{n}}"), rank="1"),
        **c1("rank_steps_behind", breaking("0+0x{n}", f"{apart}+0x{{n}}"), rank="1"),
    }


def _finding(teller: Mapping[str, str], values: str, at: float, rule: str = "nan") -> dict[str, str | None]:
    """Return a finding at the break, told by a target."""
    labels = {"rank": "1", "rule": rule, "severity": "critical"}
    step = f"_x{BREAK} {values.format(value=40)}"
    time = f"_x{BREAK} {values.format(value=at)}"
    return {
        series("dump_ingest_last_finding_step", teller, **labels): step,
        series("dump_ingest_last_finding_timestamp_seconds", teller, **labels): time,
    }


_NOW = 60 * BREAK
#: The back-off of a kubelet: 10 s, 20 s, 40 s ... at most 5 min; in whole minutes, up for one of them.
_BACKING_OFF = (0, 1, 2, 4, 7, 11, *range(17, LEFT, 6))
_LOOP_UP = " ".join("1" if minute in _BACKING_OFF else "0" for minute in range(LEFT))
_LOOP_STARTS = " ".join(str(_NOW + 60 * m) if m in _BACKING_OFF else "_" for m in range(LEFT))
_STEADY_UP = " ".join("1" if minute % 6 == 0 else "0" for minute in range(LEFT))
_STEADY_STARTS = " ".join(str(_NOW + 60 * m) if m % 6 == 0 else "_" for m in range(LEFT))
_NO_DUMP: dict[str, str | None] = (
    {selector: None for selector in a_watcher(W1, ("0", "1")) if 'rank="' in selector}
    | w1("last_look_timestamp_seconds", constant(0))
    | w1("ranks", constant(0))
    | w1("disk_free_bytes", None)
)
_CYCLES = "400e9-1.65e9x119 " * (END // 120)
_SLOW_WORK = {
    **w1("oldest_pending_timestamp_seconds", OLD_CLOCK, rank="1"),
    **w1("pending_steps", breaking("0+0x{n}", "2+0x{n}"), rank="1"),
}
_LATER_LAG = _alerts("LagHigh", "CommitsStalled")
B_SCHEDULER, B_WATCHER = target("scheduler", "sb", "b"), target("watcher", "nb", "b")
_RUN_B: dict[str, str | None] = {
    series("up", B_WATCHER): constant(1),
    series("up", B_SCHEDULER): constant(1),
    series("dask_scheduler_workers", B_SCHEDULER, state="idle"): constant(8),
    series("dump_ingest_watcher_pending_steps", B_WATCHER, rank="0"): constant(2),
}

_GC_JOB = 'namespace="train", cronjob="run1-dump-ingest-gc"'

#: States in which somebody must be told.
SILENT_FAILURES = (
    State(
        "a dump that the user may not read, of one rank",
        w1("problems", breaking("0+0x{n}", "3+0x{n}"), kind="denied"),
        _alerts("CannotRead"),
    ),
    State(
        "a dump that the user may not read, of all ranks of a host",
        {
            **w1("problems", constant(8), kind="denied"),
            **{series("dump_ingest_watcher_newest_step", W1, rank=rank): constant(-1) for rank in "01"},
            **{series("dump_ingest_watcher_committed_step", W1, rank=rank): constant(-1) for rank in "01"},
        },
        _alerts("CannotRead", "NothingReadable"),
        from_start=True,
    ),
    State(
        "a rank whose directory has a name that no dump system uses",
        w1("problems", breaking("0+0x{n}", "1+0x{n}"), kind="name"),
        _alerts("CannotRead"),
    ),
    State("a path that never shows a dump", _NO_DUMP, _alerts("NoDumpSeen"), from_start=True),
    State(
        "a store that does not answer the watchers",
        {
            series(
                "dump_ingest_store_request_errors_total", W1, op="get", reason="store_unavailable"
            ): BROKEN_AT_BREAK
        },
        _alerts("StoreErrors"),
    ),
    State(
        "a store that rejects the credentials, from the first request on",
        {series("dump_ingest_store_request_errors_total", W1, op="get", reason="store_denied"): constant(3)},
        _alerts("StoreDenied"),
        from_start=True,
    ),
    State(
        "a consolidator whose store does not exist",
        {**c1("lease_held", constant(0)), **c1("last_round_timestamp_seconds", constant(0))},
        _alerts("ConsolidatorIdle"),
        from_start=True,
    ),
    State(
        "a consolidator with another store than the watchers'",
        {
            series("dump_ingest_store_info", C1, store=STORE): None,
            series("dump_ingest_store_info", C1, store="s3://dumps/other.zarr"): constant(1),
        },
        _alerts("StoresDiffer"),
        from_start=True,
    ),
    State(
        "a consolidator with another store, which does not exist either",
        {
            series("dump_ingest_store_info", C1, store=STORE): None,
            series("dump_ingest_store_info", C1, store="s3://dumps/other.zarr"): constant(1),
            **c1("lease_held", constant(0)),
            **c1("last_round_timestamp_seconds", constant(0)),
        },
        _alerts("StoresDiffer", "ConsolidatorIdle"),
        from_start=True,
    ),
    State(
        "two consolidators, neither with the lease",
        {
            **a_consolidator(C2),
            series("dump_ingest_consolidator_lease_held", C2): constant(0),
            **c1("lease_held", breaking("1+0x{n}", "0+0x{n}")),
        },
        _alerts("ConsolidatorIdle"),
    ),
    State(
        "a watcher that is killed every minute",
        {series("process_start_time_seconds", W1): breaking("1+0x{n}", f"{_NOW}+60x{{n}}")},
        _alerts("Restarting"),
    ),
    State(
        "a worker that is killed every minute",
        {series("process_start_time_seconds", K1): breaking("1+0x{n}", f"{_NOW}+60x{{n}}")},
        _alerts("Restarting"),
    ),
    State(
        "a watcher in CrashLoopBackOff",
        {
            **gone(W1),
            series("up", W1): breaking("1+0x{n}", _LOOP_UP),
            series("process_start_time_seconds", W1): breaking("1+0x{n}", _LOOP_STARTS),
        },
        _alerts("Restarting"),
        later=_alerts("WatcherDown"),
    ),
    State(
        "a consolidator that backs off for five minutes each time",
        {
            **gone(C1),
            series("up", C1): breaking("1+0x{n}", _STEADY_UP),
            series("process_start_time_seconds", C1): breaking("1+0x{n}", _STEADY_STARTS),
        },
        _alerts("Restarting"),
        later=_alerts("ConsolidatorDown"),
    ),
    State("a watcher that is evicted", gone(W1), _alerts("TargetsLost")),
    State(
        "all watchers of a run are evicted, and another run goes on",
        {**gone(W1, W2), **_RUN_B},
        _alerts("TargetsLost", "NoWatchers"),
    ),
    State("a scheduler that is evicted", gone(S1), _alerts("TargetsLost")),
    State("a consolidator that is scaled away", gone(C1), _alerts("TargetsLost")),
    State(
        "watchers that wait for a node from the beginning",
        never(W1, W2),
        _alerts("NoWatchers"),
        from_start=True,
    ),
    State(
        "a worker that is evicted while steps wait",
        {**gone(K1), **_SLOW_WORK, series("dask_scheduler_workers", S1, state="idle"): constant(1)},
        _alerts("WorkersLost"),
        later=_LATER_LAG,
    ),
    State(
        "the last worker is evicted while steps wait",
        {
            **gone(K1),
            **_SLOW_WORK,
            series("dask_scheduler_workers", S1, state="idle"): breaking("1+0x{n}", "0+0x{n}"),
        },
        _alerts("WorkersLost", "NoDaskWorkers"),
        later=_LATER_LAG,
    ),
    State("a watcher that does not answer, at a fixed address", down(W1), _alerts("WatcherDown")),
    State("a scheduler that does not answer", down(S1), _alerts("SchedulerDown")),
    State("a consolidator that does not answer", down(C1), _alerts("ConsolidatorDown")),
    State(
        "a host that always has a watcher is gone, and nothing else of the run exists",
        {**never(W2, C1, S1, K1), **renamed(down(W1), 'run="a"', 'run="a", ends="never"'), **never(W1)},
        _alerts("WatcherDown"),
    ),
    State(
        "a pod that does not answer, with everything else of its run",
        {**never(W1, W2, C1, S1, K1), **renamed(down(W1, C1), 'run="a"', 'run="a", pod="p", node="h7"')},
        _alerts("WatcherDown", "ConsolidatorDown"),
    ),
    State(
        "fewer ranks than the settings expect",
        {series("dump_ingest_expected_ranks", C1): constant(8)},
        _alerts("RanksMissing"),
        from_start=True,
    ),
    State(
        "fewer ranks than the rank table names",
        {series("dump_ingest_expected_ranks", W1): constant(8)},
        _alerts("RanksMissing"),
        from_start=True,
    ),
    State(
        "fewer ranks than expected, and no consolidator",
        {**never(C1), series("dump_ingest_expected_ranks", W1): constant(8)},
        _alerts("RanksMissing"),
        from_start=True,
    ),
    State(
        "a rank that stops while others of its host go on",
        w1("steps_behind", breaking("0+0x{n}", "0+0.5x{n}"), rank="1"),
        _alerts("RankStalled"),
        due=BREAK + 17,
    ),
    State(
        "a rank that stops committing while others go on, by the store",
        {
            **c1("rank_steps_behind", breaking("0+0x{n}", "0+0.5x{n}"), rank="1"),
            **c1("committed_step", STOPPED, rank="1"),
        },
        _alerts("RankBehind"),
        due=BREAK + 30,
    ),
    State(
        "a NaN in the last step, told by the consolidator alone",
        {**IDLE, **gone(W1), **_finding(C1, "{value}+0x600", _NOW)},
        _alerts("NotFinite", "TargetsLost"),
    ),
    State(
        "a NaN, and the watcher ends three minutes later",
        {**_finding(W1, "{value}+0x2 stale", _NOW)},
        _alerts("NotFinite"),
    ),
    State(
        "a NaN on a host whose clock is an hour behind",
        {
            series("dump_ingest_time_seconds", W1): growing(60, -3600),
            **_finding(W1, "{value}+0x600", _NOW - 3600),
            **w1("last_look_timestamp_seconds", growing(60, -3600)),
            **w1("oldest_pending_timestamp_seconds", growing(60, -3600), rank="0"),
            **w1("oldest_pending_timestamp_seconds", growing(60, -3600), rank="1"),
        },
        _alerts("NotFinite", "ClockOff"),
    ),
    State(
        "files that were quarantined before the first scrape",
        w1("quarantined_files_total", constant(40)),
        _alerts("QuarantineGrowing"),
        from_start=True,
    ),
    State(
        "gc that fails",
        {series("dump_ingest_gc_last_failure_timestamp_seconds", C1): breaking("0+0x{n}", f"{_NOW}+0x{{n}}")},
        _alerts("GcFailing"),
    ),
    State(
        "gc that fails before it can write to the store, in a CronJob",
        {
            f"kube_cronjob_status_last_schedule_time{{{_GC_JOB}}}": breaking("600+0x{n}", f"{_NOW}+0x{{n}}"),
            f"kube_cronjob_status_last_successful_time{{{_GC_JOB}}}": constant(660),
            f"kube_cronjob_status_active{{{_GC_JOB}}}": constant(0),
        },
        _alerts("GcFailing"),
    ),
    State(
        "gc that fails before it can write to the store, as a unit of systemd",
        {
            'node_systemd_unit_state{name="dump-ingest-gc.service", state="failed", instance="n1"}': breaking(
                "0+0x{n}", "1+0x{n}"
            )
        },
        _alerts("GcFailing"),
    ),
    State(
        "a watcher that is scraped under another name",
        {
            **gone(),
            **renamed(
                {s: v for s, v in healthy().items() if belongs_to(s, W1)}, "a/dump-ingest-watcher", "mine"
            ),
            **never(W1),
        },
        _alerts("JobMisnamed"),
        from_start=True,
    ),
)

#: States in which nobody must be woken.
FALSE_ALARMS = (
    State("a run that is well", {}),
    State(
        "a job that ends, with its processes left running",
        IDLE,
        spares=_alerts("RankStalled", "RankBehind", "LagHigh"),
    ),
    State(
        "a job that is killed in the middle of a dump",
        _steps_apart(1),
        spares=_alerts("RankStalled", "RankBehind"),
    ),
    State(
        "a job that is killed while its ranks are three steps apart",
        _steps_apart(3),
        spares=_alerts("RankStalled", "RankBehind"),
    ),
    State(
        "a job that repeats steps from a checkpoint",
        {**_steps_apart(1), **{selector: CLOCK for selector in healthy() if "last_commit" in selector}},
    ),
    State("a job that evaluates for hours after an uneven dump", _steps_apart(1)),
    State(
        "a job that ends in Slurm, with static targets",
        down(*ALL),
        spares=_alerts("WatcherDown", "SchedulerDown", "ConsolidatorDown", "NoWatchers"),
    ),
    State(
        "a job that ends, with targets that are taken out",
        gone(*ALL),
        spares=_alerts("TargetsLost", "NoWatchers"),
    ),
    State(
        "sidecars that end with their job, and the consolidator goes on",
        {
            **never(*ALL),
            **renamed({**healthy(), **IDLE, **gone(W1, W2)}, 'run="a"', 'run="a", ends="with-job"'),
        },
        spares=_alerts("TargetsLost", "NoWatchers"),
    ),
    State(
        "a consolidator that stands by since it lost the lease",
        {
            **a_consolidator(C2),
            series("dump_ingest_consolidator_lease_held", C2): breaking("1+0x{n}", "0+0x{n}"),
            series("dump_ingest_consolidator_last_round_timestamp_seconds", C2): OLD_CLOCK,
            series("dump_ingest_consolidator_oldest_waiting_timestamp_seconds", C2): OLD_CLOCK,
            series("dump_ingest_consolidator_fastest_rank_step", C2): STOPPED,
            **{series("dump_ingest_consolidator_committed_step", C2, rank=rank): STOPPED for rank in "0123"},
        },
        spares=_alerts("ConsolidatorBehind", "ConsolidatorIdle"),
    ),
    *(
        State(
            f"a restart of the {one['job'].rpartition('-')[2]}",
            {
                series("up", one): breaking("1+0x{n}", "0+0x2 1+0x{n}"),
                series("process_start_time_seconds", one): breaking("1+0x{n}", f"_x3 {_NOW}+0x{{n}}"),
            },
            spares=_alerts("Restarting", "WatcherDown"),
        )
        for one in (W1, C1, S1, K1)
    ),
    State(
        "an upgrade that replaces all pods one after the other",
        {
            **renamed(
                {
                    s: begun_at_break(v)
                    for s, v in healthy().items()
                    if s.startswith(("up{", "process_start"))
                },
                'instance="',
                'instance="new-',
            ),
            **{s: v for s, v in gone(*ALL).items() if s.startswith("up{")},
        },
        spares=_alerts("TargetsLost", "Restarting"),
    ),
    State(
        "a host whose clock is ten minutes behind, in an idle run",
        {
            **IDLE,
            series("dump_ingest_time_seconds", W1): growing(60, -600),
            **w1("last_look_timestamp_seconds", growing(60, -600)),
            **w1("oldest_pending_timestamp_seconds", growing(60, -600), rank="0"),
            **w1("oldest_pending_timestamp_seconds", growing(60, -600), rank="1"),
        },
        _alerts("ClockOff"),
        from_start=True,
        spares=_alerts("LagHigh", "WatcherStuck"),
    ),
    State(
        "a host whose clock is ten minutes ahead",
        {
            series("dump_ingest_time_seconds", W1): growing(60, 600),
            **w1("last_look_timestamp_seconds", growing(60, 600)),
            **w1("oldest_pending_timestamp_seconds", growing(60, 600), rank="0"),
            **w1("oldest_pending_timestamp_seconds", growing(60, 600), rank="1"),
        },
        _alerts("ClockOff"),
        from_start=True,
        spares=_alerts("LagHigh"),
    ),
    State(
        "a clock that is a minute off",
        {series("dump_ingest_time_seconds", W1): growing(60, 60)},
        spares=_alerts("ClockOff"),
    ),
    State(
        "a large dump, a look at which takes a minute, every ten minutes",
        {
            **w1("last_look_timestamp_seconds", " ".join(f"{600 * n}+0x9" for n in range(END // 10))),
            **w1("pending_steps", constant(1), rank="1"),
            **w1(
                "oldest_pending_timestamp_seconds",
                " ".join(f"{600 * n}+0x9" for n in range(END // 10)),
                rank="1",
            ),
        },
        spares=_alerts("WatcherStuck", "LagHigh"),
    ),
    State(
        "a run that is over and scaled to nothing, beside a busy one",
        {
            **IDLE,
            **_RUN_B,
            **gone(K1),
            series("dask_scheduler_workers", S1, state="idle"): breaking("1+0x{n}", "0+0x{n}"),
        },
        spares=_alerts("NoDaskWorkers", "WorkersLost"),
    ),
    State(
        "workers that an autoscaler takes away while nothing waits",
        {series("up", K2): cut(constant(1))},
        spares=_alerts("WorkersLost"),
    ),
    State(
        "a consolidator that restarts while a rank works off a backlog",
        {
            **gone(C1),
            **{
                selector.replace('"c1"', '"c9"'): begun_at_break(values)
                for selector, values in a_consolidator(C1).items()
            },
            series(
                "dump_ingest_consolidator_committed_step", target("consolidator", "c9"), rank="1"
            ): f"_x{BREAK} 100+0x16 101+1x{LEFT}",
            series(
                "dump_ingest_consolidator_rank_steps_behind", target("consolidator", "c9"), rank="1"
            ): f"_x{BREAK} 1+1x16 0+0x{LEFT}",
        },
        spares=_alerts("RankBehind"),
    ),
    State(
        "fewer ranks for some minutes, while a job starts",
        {series("dump_ingest_expected_ranks", C1): constant(4), **c1("ranks", "2+0x8 4+0x800")},
        spares=_alerts("RanksMissing"),
    ),
    State(
        "gc that failed and has succeeded since",
        {
            series("dump_ingest_gc_last_failure_timestamp_seconds", C1): constant(600),
            series("dump_ingest_gc_last_success_timestamp_seconds", C1): constant(700),
        },
        spares=_alerts("GcFailing"),
    ),
    State(
        "a NaN that is told again when a process starts, two hours later",
        {**_finding(W1, "{value}+0x600", _NOW - 7200)},
        spares=_alerts("NotFinite"),
    ),
    State(
        "files that were quarantined long ago, and a watcher that restarts",
        w1("quarantined_files_total", breaking("0+0x{n}", "0+0x{n}")),
        spares=_alerts("QuarantineGrowing"),
    ),
    State(
        "a dump of which links are left out",
        w1("problems", constant(5), kind="other"),
        spares=_alerts("CannotRead"),
    ),
    State(
        "two runs with a store each, without the label of a run",
        {
            **never(*ALL),
            **renamed(healthy(), 'run="a", ', ""),
            **renamed(
                renamed(renamed(healthy(), 'run="a", ', ""), 'instance="', 'instance="b'), STORE, "s3://b"
            ),
        },
        spares=_alerts("StoresDiffer", "JobMisnamed"),
    ),
    State(
        "a path that shows its dump after five minutes",
        {**w1("last_look_timestamp_seconds", f"0+0x5 360+60x{END}")},
        spares=_alerts("NoDumpSeen", "NothingReadable"),
    ),
)
#: The same for disks, which take hours.
DISKS = (
    State(
        "a disk that is nearly full, and fills",
        w1("disk_free_bytes", "300e9-1.2e9x240 12e9+0x600"),
        _alerts("DiskFilling"),
        due=145,
        later=_alerts("DiskFull"),
    ),
    State(
        "a shared disk that is always 96 % full",
        w1("disk_free_bytes", constant(40e9)),
        spares=_alerts("DiskFull", "DiskFilling"),
    ),
    State(
        "a shared disk that swings between 95 % and 97 %",
        w1("disk_free_bytes", "50e9-0.5e9x39 30e9+0.5e9x39 " * (END // 80)),
        spares=_alerts("DiskFull", "DiskFilling"),
    ),
    State(
        "a cleanup every two hours", w1("disk_free_bytes", _CYCLES), spares=_alerts("DiskFilling", "DiskFull")
    ),
    State(
        "a cleanup every two hours on a disk that is nearly full",
        w1("disk_free_bytes", "160e9-1e9x119 " * (END // 120)),
        later=_alerts("DiskFilling"),
        spares=_alerts("DiskFull"),
    ),
)
STATES = (*SILENT_FAILURES, *FALSE_ALARMS, *DISKS)


def rules_tests(rules: str) -> dict[str, dict[str, Any]]:
    """Return the files that `promtool test rules` reads, by name; each looks as long as it has to."""

    def file(states: tuple[State, ...], interval: str, end: int) -> dict[str, Any]:
        tests = [state.case(end) for state in states]
        return {"rule_files": [rules], "evaluation_interval": interval, "tests": tests}

    return {
        "failures": file(SILENT_FAILURES, "1m", 0),
        "false_alarms": file(FALSE_ALARMS, "3m", BREAK + 61),
        "disks": file(DISKS, "5m", END - 5),
    }
