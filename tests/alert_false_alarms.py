"""States of a deployment in which nobody must be woken."""

from __future__ import annotations

from tests.alert_failures import restarting
from tests.alerts import (
    ALL,
    BREAK,
    C1,
    C2,
    CLOCK,
    END,
    IDLE,
    K1,
    K2,
    LEFT,
    NOW,
    OLD_CLOCK,
    RUN_B,
    S1,
    STOPPED,
    STORE,
    W1,
    W2,
    W3,
    State,
    a_consolidator,
    a_watcher,
    alerts,
    away,
    begun_again,
    begun_at_break,
    breaking,
    c1,
    constant,
    cut,
    down,
    finding,
    gone,
    growing,
    healthy,
    never,
    renamed,
    series,
    steps_apart,
    target,
    w1,
)

#: Counters of which one more is told at once, with their labels.
DAMAGE_COUNTERS = {
    "watcher_quarantined_files_total": {},
    "watcher_commits_without_tensors_total": {},
    "watcher_step_failures_total": {"reason": "damaged_store"},
    "store_request_errors_total": {"op": "get", "reason": "store_denied"},
    "rule_failures_total": {},
}

#: How far behind a rank is that writes as often as the others, but later.
LATE = "2 3 2 2 3 4 2 2 3 3 3 1 2 2 " * (END // 14)

#: How far behind the others are if rank 1 dumps every half hour, and they every hour.
HALF_AS_OFTEN = "0+0x29 1+0x29 " * (END // 60)
#: The pods of an update: the next one is replaced when the one before is back, after three minutes.
POD_BY_POD = {
    series("up", target("watcher", f"{age}{number}", pod=f"{age}{number}")): values
    for number in range(10)
    for age, values in (
        ("old", f"1x{BREAK + 3 * number - 1} stale"),
        ("new", f"_x{BREAK + 3 * number + 3} 1x{LEFT - 3 * number}"),
    )
}

#: States in which nobody must be woken.
FALSE_ALARMS = (
    State("a run that is well", {}),
    State(
        "a job that ends, with its processes left running",
        IDLE,
        spares=alerts("RankStalled", "RankBehind", "LagHigh"),
    ),
    State(
        "a job that is killed in the middle of a dump",
        steps_apart(1),
        spares=alerts("RankStalled", "RankBehind"),
    ),
    State(
        "a job that is killed while its ranks are three steps apart",
        steps_apart(3),
        spares=alerts("RankStalled", "RankBehind"),
    ),
    State(
        "a job that repeats steps from a checkpoint",
        {**steps_apart(1), **{selector: CLOCK for selector in healthy() if "last_commit" in selector}},
    ),
    State("a job that evaluates for hours after an uneven dump", steps_apart(1)),
    State(
        "a rank that is always late, by one step to four",
        {
            **w1("steps_behind", LATE, rank="1"),
            **c1("rank_steps_behind", LATE, rank="1"),
        },
        spares=alerts("RankStalled", "RankBehind"),
    ),
    State(
        "a job that ends in Slurm, with static targets",
        down(*ALL),
        spares=alerts("WatcherDown", "SchedulerDown", "ConsolidatorDown", "NoWatchers"),
    ),
    State(
        "a job that ends, with targets that are taken out",
        gone(*ALL),
        spares=alerts("TargetsLost", "NoWatchers"),
    ),
    State(
        "a job that ends while its last step waits for a commit",
        {
            **gone(*ALL),
            **w1("pending_steps", cut(constant(1)), rank="1"),
            **w1("oldest_pending_timestamp_seconds", cut(growing(60, start=-60)), rank="1"),
        },
        spares=alerts("BacklogLeft"),
    ),
    State(
        "a job in Slurm that ends with an old backlog, and takes it before it ends",
        {
            **gone(*ALL),
            series("dump_ingest_finishes", W1): cut(constant(1)),
            **w1("pending_steps", f"7+0x{BREAK - 2} 0 stale", rank="1"),
            **w1(
                "oldest_pending_timestamp_seconds",
                f"-480+60x{BREAK - 2} {60 * (BREAK - 1)} stale",
                rank="1",
            ),
        },
        spares=alerts("BacklogLeft"),
    ),
    State(
        "a job in Slurm whose watchers have ended, and whose consolidator finishes for three minutes",
        {
            **gone(*ALL),
            **{series("up", target): f"1x{BREAK - 1} 0x2 stale" for target in (W1, W2)},
            **{series("up", target): f"1x{BREAK + 2} stale" for target in (C1, S1, K1)},
        },
        spares=alerts("WatcherDown", "NoWatchers", "TargetsLost"),
    ),
    State(
        "sidecars that end with their job, and the consolidator goes on",
        {
            **never(*ALL),
            **renamed({**healthy(), **IDLE, **gone(W1, W2)}, 'run="a"', 'run="a", ends="with-job"'),
        },
        spares=alerts("TargetsLost", "NoWatchers"),
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
        spares=alerts("ConsolidatorBehind", "ConsolidatorIdle"),
    ),
    *(
        State(
            f"a restart of the {target['job'].rpartition('-')[2]}",
            {
                series("up", target): breaking("1+0x{n}", "0+0x2 1+0x{n}"),
                series("process_start_time_seconds", target): breaking("1+0x{n}", f"_x3 {NOW}+0x{{n}}"),
            },
            spares=alerts("Restarting", "WatcherDown"),
        )
        for target in (W1, C1, S1, K1)
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
        spares=alerts("TargetsLost", "Restarting"),
    ),
    State(
        "an update of a DaemonSet that takes half an hour, with a pod missing all the time",
        {**never(W1, W2), **POD_BY_POD},
        spares=alerts("TargetsLost"),
    ),
    State(
        "somebody who tries settings, and restarts a watcher five times",
        {series("process_start_time_seconds", W1): restarting(15, 5)},
        spares=alerts("Restarting", "RestartsOften"),
    ),
    State(
        "a rank that dumps twice as often as the others",
        {
            change: values
            for rank in "01"
            for gauge in (
                w1("steps_behind", HALF_AS_OFTEN, rank=rank),
                c1("rank_steps_behind", HALF_AS_OFTEN, rank=rank),
            )
            for change, values in gauge.items()
        },
        spares=alerts("RankStalled", "RankBehind"),
    ),
    State(
        "a job that begins again with one rank less, of which the settings know",
        {
            **w1("steps_behind", breaking("0+0x{n}", "0+0.5x{n}"), rank="1"),
            **c1("rank_steps_behind", breaking("0+0x{n}", "0+0.5x{n}"), rank="1"),
            **c1("committed_step", STOPPED, rank="1"),
            **{series("dump_ingest_expected_ranks", one): breaking("4+0x{n}", "3+0x{n}") for one in (W1, C1)},
        },
        spares=alerts("RankStalled", "RankBehind"),
    ),
    State(
        "a job that ended hours ago with fewer ranks than expected, with its processes left running",
        {
            **{selector: constant(100) for selector in IDLE if "_step{" in selector},
            **{series("process_start_time_seconds", one): constant(-9000) for one in (W1, W2, C1)},
            series("dump_ingest_expected_ranks", C1): constant(8),
        },
        spares=alerts("RanksMissing"),
    ),
    State(
        "a host whose clock is ten minutes behind, in an idle run",
        {
            **IDLE,
            series("dump_ingest_time_seconds", W1): growing(60, -600),
            series("dump_ingest_heartbeat_timestamp_seconds", W1): growing(60, -600),
            **w1("last_look_timestamp_seconds", growing(60, -600)),
            **w1("oldest_pending_timestamp_seconds", growing(60, -600), rank="0"),
            **w1("oldest_pending_timestamp_seconds", growing(60, -600), rank="1"),
        },
        alerts("ClockOff"),
        from_start=True,
        spares=alerts("LagHigh", "WatcherStuck"),
    ),
    State(
        "a host whose clock is ten minutes ahead",
        {
            series("dump_ingest_time_seconds", W1): growing(60, 600),
            series("dump_ingest_heartbeat_timestamp_seconds", W1): growing(60, 600),
            **w1("last_look_timestamp_seconds", growing(60, 600)),
            **w1("oldest_pending_timestamp_seconds", growing(60, 600), rank="0"),
            **w1("oldest_pending_timestamp_seconds", growing(60, 600), rank="1"),
        },
        alerts("ClockOff"),
        from_start=True,
        spares=alerts("LagHigh"),
    ),
    State(
        "a clock that is a minute off",
        {
            series("dump_ingest_time_seconds", W1): growing(60, 60),
            series("dump_ingest_heartbeat_timestamp_seconds", W1): growing(60, 60),
        },
        spares=alerts("ClockOff"),
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
        spares=alerts("WatcherStuck", "LagHigh"),
    ),
    State(
        "a run that is over and scaled to nothing, beside a busy one",
        {
            **IDLE,
            **RUN_B,
            **gone(K1),
            series("dask_scheduler_workers", S1, state="idle"): breaking("1+0x{n}", "0+0x{n}"),
        },
        spares=alerts("NoDaskWorkers", "WorkersLost"),
    ),
    State(
        "workers that an autoscaler takes away while nothing waits",
        {series("up", K2): cut(constant(1))},
        spares=alerts("WorkersLost"),
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
        spares=alerts("RankBehind"),
    ),
    State(
        "fewer ranks for some minutes, while a job starts",
        {series("dump_ingest_expected_ranks", C1): constant(4), **c1("ranks", "2+0x8 4+0x800")},
        spares=alerts("RanksMissing"),
    ),
    State(
        "gc that failed and has succeeded since",
        {
            series("dump_ingest_gc_last_failure_timestamp_seconds", C1): constant(600),
            series("dump_ingest_gc_last_success_timestamp_seconds", C1): constant(700),
        },
        spares=alerts("GcFailing"),
    ),
    State(
        "a NaN that is told again when a process starts, two hours later",
        {**finding(W1, "{value}+0x600", NOW - 7200)},
        spares=alerts("NotFinite"),
    ),
    State(
        "files that were quarantined long ago, and a watcher that restarts",
        w1("quarantined_files_total", breaking("0+0x{n}", "0+0x{n}")),
        spares=alerts("QuarantineGrowing"),
    ),
    State(
        "a dump of which links are left out",
        w1("problems", constant(5), kind="other"),
        spares=alerts("CannotRead"),
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
        spares=alerts("StoresDiffer", "JobMisnamed"),
    ),
    State(
        "a path that shows its dump after five minutes",
        {**w1("last_look_timestamp_seconds", f"0+0x5 360+60x{END}")},
        spares=alerts("NoDumpSeen", "NothingReadable"),
    ),
    State(
        "Prometheus is away for ten minutes, and knows nothing of them",
        {selector: away(values, BREAK, 10) for selector, values in healthy().items()},
        spares=alerts("TargetsLost", "Restarting", "NoWatchers", "WatcherStuck"),
    ),
    State(
        "counters that rose days ago, and Prometheus was away for twenty minutes an hour ago",
        {
            series("process_start_time_seconds", W1): constant(-90000),
            **{
                series(f"dump_ingest_{name}", W1, **labels): f"7+0x9 _x20 7+0x{END}"
                for name, labels in DAMAGE_COUNTERS.items()
            },
        },
        spares=alerts("QuarantineGrowing", "RuleFailing", "ChecksumDamage", "StoreDenied", "TensorsLeftOut"),
    ),
    State(
        "a node that is replaced, and its watcher comes back on another after five minutes",
        {
            **gone(W2),
            **{s: begun_at_break(v, after=5) for s, v in a_watcher(W3, ("2", "3")).items()},
        },
        spares=alerts("TargetsLost"),
    ),
    State(
        "a run that ends, and the next one of its name has fewer hosts",
        {
            **IDLE,
            **gone(W2),
            **begun_again(W1, 6),
            **begun_again(C1, 6),
            **begun_again(S1, 6),
            **begun_again(K1, 6),
        },
        spares=alerts("TargetsLost", "Restarting"),
    ),
    State(
        "a second watcher for six minutes, while one takes over from another",
        {series("up", W3): f"_x{BREAK} 1x5 stale"},
        spares=alerts("TargetsLost"),
    ),
    State(
        "a worker that is restarted, while tasks wait for it for two minutes",
        {series("dask_scheduler_tasks", S1, state="no-worker"): breaking("0+0x{n}", "4 4 0+0x{n}")},
        spares=alerts("DaskTasksUnrunnable"),
    ),
)
