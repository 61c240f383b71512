"""States of a deployment in which somebody must be told."""

from __future__ import annotations

from tests.alerts import (
    ALL,
    B_WATCHER,
    BREAK,
    BROKEN_AT_BREAK,
    C1,
    C2,
    CLOCK,
    END,
    GC_JOB,
    IDLE,
    K1,
    LATER_LAG,
    LEFT,
    LOOP_STARTS,
    LOOP_UP,
    NO_DUMP,
    NOW,
    OLD_CLOCK,
    RUN_B,
    S1,
    SLOW_WORK,
    STEADY_STARTS,
    STEADY_UP,
    STOPPED,
    STORE,
    W1,
    W2,
    State,
    a_consolidator,
    a_watcher,
    alerts,
    begun_at_break,
    belongs_to,
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
    w1,
)

#: Each process lives for eleven minutes.
SLOW_STARTS = " ".join(f"{NOW + 660 * n}+0x10" for n in range(LEFT // 11))


def restarting(minutes: int, times: int = LEFT) -> str:
    """Return the start times of a process that is killed every so many minutes, again and again."""
    lives = range(min(times, LEFT // minutes))
    return f"1+0x{BREAK - 1} " + " ".join(f"{NOW + 60 * minutes * n}+0x{minutes - 1}" for n in lives)


#: The others write a step each hour.
HOURLY = " ".join(f"{n}+0x59" for n in range(LEFT // 60))
#: The same, and Prometheus is away for ten minutes in the fourth hour.
AWAY_FOR_LONG = f"0+0x59 1+0x59 2+0x59 3+0x19 _x10 3+0x{END}"
NEXT_POD = {
    **{selector: begun_at_break(values) for selector, values in a_watcher(W1, ("0", "1")).items()},
    **finding(W1, "{value}+0x600", NOW),
}

#: States in which somebody must be told.
SILENT_FAILURES = (
    State(
        "a dump that the user may not read, of one rank",
        w1("problems", breaking("0+0x{n}", "3+0x{n}"), kind="denied"),
        alerts("CannotRead"),
    ),
    State(
        "a dump that the user may not read, of all ranks of a host",
        {
            **w1("problems", constant(8), kind="denied"),
            **{series("dump_ingest_watcher_newest_step", W1, rank=rank): constant(-1) for rank in "01"},
            **{series("dump_ingest_watcher_committed_step", W1, rank=rank): constant(-1) for rank in "01"},
        },
        alerts("CannotRead", "NothingReadable"),
        from_start=True,
    ),
    State(
        "a rank whose directory has a name that no dump system uses",
        w1("problems", breaking("0+0x{n}", "1+0x{n}"), kind="name"),
        alerts("CannotRead"),
    ),
    State("a path that never shows a dump", NO_DUMP, alerts("NoDumpSeen"), from_start=True),
    State(
        "a store that does not answer the watchers",
        {
            series(
                "dump_ingest_store_request_errors_total", W1, op="get", reason="store_unavailable"
            ): BROKEN_AT_BREAK
        },
        alerts("StoreErrors"),
    ),
    State(
        "a store that rejects the credentials, from the first request on",
        {series("dump_ingest_store_request_errors_total", W1, op="get", reason="store_denied"): constant(3)},
        alerts("StoreDenied"),
        from_start=True,
    ),
    State(
        "a consolidator whose store does not exist",
        {**c1("lease_held", constant(0)), **c1("last_round_timestamp_seconds", constant(0))},
        alerts("ConsolidatorIdle"),
        from_start=True,
    ),
    State(
        "a consolidator with another store than the watchers'",
        {
            series("dump_ingest_store_info", C1, store=STORE): None,
            series("dump_ingest_store_info", C1, store="s3://dumps/other.zarr"): constant(1),
        },
        alerts("StoresDiffer"),
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
        alerts("StoresDiffer", "ConsolidatorIdle"),
        from_start=True,
    ),
    State(
        "two consolidators, neither with the lease",
        {
            **a_consolidator(C2),
            series("dump_ingest_consolidator_lease_held", C2): constant(0),
            **c1("lease_held", breaking("1+0x{n}", "0+0x{n}")),
        },
        alerts("ConsolidatorIdle"),
    ),
    State(
        "a watcher that is killed every minute",
        {series("process_start_time_seconds", W1): breaking("1+0x{n}", f"{NOW}+60x{{n}}")},
        alerts("Restarting"),
    ),
    State(
        "a worker that is killed every minute",
        {series("process_start_time_seconds", K1): breaking("1+0x{n}", f"{NOW}+60x{{n}}")},
        alerts("Restarting"),
    ),
    State(
        "a consolidator that is killed every eleven minutes, which Kubernetes does not call a crash loop",
        {series("process_start_time_seconds", C1): f"1+0x{BREAK - 1} {SLOW_STARTS}"},
        alerts("Restarting"),
        due=BREAK + 50,
    ),
    State(
        "a watcher that is killed every quarter of an hour",
        {series("process_start_time_seconds", W1): restarting(15)},
        alerts("RestartsOften"),
        due=BREAK + 250,
        holds=450,
    ),
    State(
        "a worker that is killed every hour",
        {series("process_start_time_seconds", K1): restarting(60)},
        alerts("RestartsOften"),
        due=BREAK + 250,
        holds=450,
    ),
    State(
        "a watcher on a busy host, which answers every second scrape in time",
        {
            **gone(W1),
            series("up", W1): breaking("1+0x{n}", "0 1 " * (LEFT // 2)),
        },
        alerts("Restarting"),
    ),
    State(
        "a watcher in CrashLoopBackOff",
        {
            **gone(W1),
            series("up", W1): breaking("1+0x{n}", LOOP_UP),
            series("process_start_time_seconds", W1): breaking("1+0x{n}", LOOP_STARTS),
        },
        alerts("Restarting"),
        later=alerts("WatcherDown"),
    ),
    State(
        "a consolidator that backs off for five minutes each time",
        {
            **gone(C1),
            series("up", C1): breaking("1+0x{n}", STEADY_UP),
            series("process_start_time_seconds", C1): breaking("1+0x{n}", STEADY_STARTS),
        },
        alerts("Restarting"),
        later=alerts("ConsolidatorDown"),
    ),
    State("a watcher that is evicted, and stays away", gone(W1), alerts("TargetsLost"), holds=290),
    State(
        "watchers without the label of a run, one of which is evicted, and nothing else",
        {
            **never(*ALL),
            **renamed({series("up", W1): constant(1), series("up", W2): cut(constant(1))}, 'run="a", ', ""),
        },
        alerts("TargetsLost"),
        holds=290,
    ),
    State(
        "all watchers of one run are gone, and those of another go on, without the label of a run",
        {
            **never(*ALL),
            **renamed({**gone(W1), series("up", B_WATCHER): constant(1)}, 'run="a", ', ""),
            **renamed({series("up", B_WATCHER): constant(1)}, 'run="b", ', ""),
        },
        alerts("TargetsLost"),
        holds=290,
    ),
    State(
        "files that may not be read, told without their kind",
        {series("dump_ingest_watcher_problems", W1): breaking("0+0x{n}", "8+0x{n}")},
        alerts("CannotRead"),
    ),
    State(
        "tasks that no worker may run, which Dask drops each minute and which come back",
        {series("dask_scheduler_tasks", S1, state="no-worker"): breaking("0+0x{n}", "3 0 " * (LEFT // 2))},
        alerts("DaskTasksUnrunnable"),
    ),
    State(
        "a worker that does not answer any more while steps wait",
        {**down(K1), **SLOW_WORK},
        alerts("WorkersLost"),
        later=LATER_LAG,
    ),
    State(
        "a watcher that has not answered since it became a target",
        {**never(W1), series("up", W1): constant(0)},
        alerts("WatcherDown"),
        from_start=True,
    ),
    State(
        "a watcher that hangs before its first look",
        {
            **w1("last_look_timestamp_seconds", constant(0)),
            series("dump_ingest_heartbeat_timestamp_seconds", W1): constant(60),
        },
        alerts("WatcherStuck", "NoDumpSeen"),
        from_start=True,
    ),
    State(
        "a consolidator that hangs and still holds the lease",
        {
            **c1("last_round_timestamp_seconds", OLD_CLOCK),
            series("dump_ingest_heartbeat_timestamp_seconds", C1): OLD_CLOCK,
        },
        alerts("ConsolidatorBehind"),
    ),
    State(
        "a NaN in the last step of a job, all of whose processes end with it",
        {**gone(*ALL), **finding(W1, "{value} stale", NOW)},
        alerts("NotFinite"),
        holds=BREAK + 55,
    ),
    State(
        "all watchers of a run are evicted, and another run goes on",
        {**gone(W1, W2), **RUN_B},
        alerts("TargetsLost", "NoWatchers"),
    ),
    State(
        "a run that ends with a backlog",
        {
            **gone(*ALL),
            **w1("pending_steps", cut(constant(7)), rank="1"),
            **w1("oldest_pending_timestamp_seconds", cut(growing(60, start=-480)), rank="1"),
        },
        alerts("BacklogLeft"),
    ),
    State(
        "a job that takes everything before it ends, and is killed while a young step waits",
        {
            **gone(*ALL),
            series("dump_ingest_finishes", W1): cut(constant(1)),
            **w1("pending_steps", cut(constant(1)), rank="1"),
            **w1("oldest_pending_timestamp_seconds", cut(growing(60, start=-60)), rank="1"),
        },
        alerts("BacklogLeft"),
    ),
    State(
        "a job that takes everything before it ends, and ends with steps that it may not read",
        {
            **gone(*ALL),
            series("dump_ingest_finishes", W1): cut(constant(1)),
            **w1("pending_steps", f"0+0x{BREAK - 2} 3 stale", rank="1"),
        },
        alerts("BacklogLeft"),
    ),
    State("a scheduler that is evicted", gone(S1), alerts("TargetsLost")),
    State("a consolidator that is scaled away", gone(C1), alerts("TargetsLost")),
    State(
        "watchers that wait for a node from the beginning",
        never(W1, W2),
        alerts("NoWatchers"),
        from_start=True,
    ),
    State(
        "a worker that is evicted while steps wait",
        {**gone(K1), **SLOW_WORK, series("dask_scheduler_workers", S1, state="idle"): constant(1)},
        alerts("WorkersLost"),
        later=LATER_LAG,
    ),
    State(
        "the last worker is evicted while steps wait",
        {
            **gone(K1),
            **SLOW_WORK,
            series("dask_scheduler_workers", S1, state="idle"): breaking("1+0x{n}", "0+0x{n}"),
        },
        alerts("WorkersLost", "NoDaskWorkers"),
        later=LATER_LAG,
    ),
    State("a watcher that does not answer, at a fixed address", down(W1), alerts("WatcherDown")),
    State("a scheduler that does not answer", down(S1), alerts("SchedulerDown")),
    State("a consolidator that does not answer", down(C1), alerts("ConsolidatorDown")),
    State(
        "a host that always has a watcher is gone, and nothing else of the run exists",
        {**never(W2, C1, S1, K1), **renamed(down(W1), 'run="a"', 'run="a", ends="never"'), **never(W1)},
        alerts("WatcherDown"),
    ),
    State(
        "a pod that does not answer, with everything else of its run",
        {**never(W1, W2, C1, S1, K1), **renamed(down(W1, C1), 'run="a"', 'run="a", pod="p", node="h7"')},
        alerts("WatcherDown", "ConsolidatorDown"),
    ),
    State(
        "fewer ranks than the settings expect",
        {series("dump_ingest_expected_ranks", C1): constant(8)},
        alerts("RanksMissing"),
        from_start=True,
    ),
    State(
        "fewer ranks than the rank table names",
        {series("dump_ingest_expected_ranks", W1): constant(8)},
        alerts("RanksMissing"),
        from_start=True,
    ),
    State(
        "fewer ranks than expected, and no consolidator",
        {**never(C1), series("dump_ingest_expected_ranks", W1): constant(8)},
        alerts("RanksMissing"),
        from_start=True,
    ),
    State(
        "a rank that stops while others of its host go on",
        w1("steps_behind", breaking("0+0x{n}", "0+0.5x{n}"), rank="1"),
        alerts("RankStalled"),
        due=BREAK + 17,
    ),
    State(
        "a rank that stops, in a job that dumps once an hour",
        {
            **w1("steps_behind", HOURLY, rank="1"),
            **c1("rank_steps_behind", HOURLY, rank="1"),
            **c1("committed_step", STOPPED, rank="1"),
        },
        alerts("RankStalled", "RankBehind"),
        due=150,
        holds=290,
    ),
    State(
        "a rank that stops, in a job that dumps once an hour, and Prometheus restarts",
        w1("steps_behind", AWAY_FOR_LONG, rank="1"),
        alerts("RankStalled"),
        due=150,
        holds=230,
    ),
    State(
        "a rank that stops committing while others go on, by the store",
        {
            **c1("rank_steps_behind", breaking("0+0x{n}", "0+0.5x{n}"), rank="1"),
            **c1("committed_step", STOPPED, rank="1"),
        },
        alerts("RankBehind"),
        due=BREAK + 30,
    ),
    State(
        "a NaN in the last step, told by the consolidator alone",
        {**IDLE, **gone(W1), **finding(C1, "{value}+0x600", NOW)},
        alerts("NotFinite", "TargetsLost"),
    ),
    State(
        "a NaN, and the watcher ends three minutes later",
        {**finding(W1, "{value}+0x2 stale", NOW)},
        alerts("NotFinite"),
    ),
    State(
        "a NaN in a pod that has the address of the one before",
        {
            **never(W1),
            **renamed(gone(W1), 'run="a"', 'run="a", pod="old"'),
            **renamed(NEXT_POD, 'run="a"', 'run="a", pod="new"'),
        },
        alerts("NotFinite"),
    ),
    State(
        "a NaN on a host whose clock is an hour behind",
        {
            series("dump_ingest_time_seconds", W1): growing(60, -3600),
            **finding(W1, "{value}+0x600", NOW - 3600),
            **w1("last_look_timestamp_seconds", growing(60, -3600)),
            **w1("oldest_pending_timestamp_seconds", growing(60, -3600), rank="0"),
            **w1("oldest_pending_timestamp_seconds", growing(60, -3600), rank="1"),
        },
        alerts("NotFinite", "ClockOff"),
    ),
    State(
        "files that were quarantined before the first scrape",
        w1("quarantined_files_total", constant(40)),
        alerts("QuarantineGrowing"),
        from_start=True,
    ),
    State(
        "damaged bytes that a worker reads before its first scrape",
        {series("dump_ingest_convert_failures_total", K1, reason="damaged_store"): constant(1)},
        alerts("ChecksumDamage"),
        from_start=True,
    ),
    State(
        "credentials that a watcher with a wrong clock is denied before its first scrape",
        {
            series("process_start_time_seconds", W1): constant(-3600),
            **{
                selector: growing(60, -3600)
                for selector, values in a_watcher(W1, ("0", "1")).items()
                if values == CLOCK
            },
            series("dump_ingest_store_request_errors_total", W1, op="get", reason="store_denied"): constant(
                3
            ),
        },
        alerts("StoreDenied", "ClockOff"),
        from_start=True,
    ),
    State(
        "gc that fails",
        {series("dump_ingest_gc_last_failure_timestamp_seconds", C1): breaking("0+0x{n}", f"{NOW}+0x{{n}}")},
        alerts("GcFailing"),
    ),
    State(
        "gc that fails before it can write to the store, in a CronJob",
        {
            f"kube_cronjob_status_last_schedule_time{{{GC_JOB}}}": breaking("600+0x{n}", f"{NOW}+0x{{n}}"),
            f"kube_cronjob_status_last_successful_time{{{GC_JOB}}}": constant(660),
            f"kube_cronjob_status_active{{{GC_JOB}}}": constant(0),
        },
        alerts("GcFailing"),
    ),
    State(
        "gc that fails before it can write to the store, as a unit of systemd",
        {
            'node_systemd_unit_state{name="dump-ingest-gc.service", state="failed", instance="n1"}': breaking(
                "0+0x{n}", "1+0x{n}"
            )
        },
        alerts("GcFailing"),
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
        alerts("JobMisnamed"),
        from_start=True,
    ),
)
