"""The series of a run that is well, as `promtool` takes them, and how they change when something breaks."""

from __future__ import annotations

from collections.abc import Mapping

#: Minutes of healthy life before something breaks.
BREAK = 35
#: How long a state lasts at most, in minutes.
END = 700
LEFT = END - BREAK

STORE = "s3://dumps/run.zarr"


def series(metric: str, target: Mapping[str, str], **labels: str) -> str:
    """Return the selector of a series of a target."""
    inner = ", ".join(f'{name}="{value}"' for name, value in {**target, **labels}.items())
    return f"{metric}{{{inner}}}"


def target(role: str, instance: str, run: str = "a", **labels: str) -> dict[str, str]:
    """Return the labels of a target."""
    return {
        "job": f"{run}/dump-ingest-{role}",
        "instance": instance,
        "run": run,
        "namespace": "train",
        **labels,
    }


W1, W2, W3 = target("watcher", "n1"), target("watcher", "n2"), target("watcher", "n3")
C1, C2 = target("consolidator", "c1"), target("consolidator", "c2")
S1, K1, K2 = target("scheduler", "s1"), target("worker", "k1"), target("worker", "k2")
ALL = (W1, W2, C1, S1, K1)


def constant(value: float) -> str:
    """Return the values of a series that does not change."""
    return f"{value}+0x{END}"


def growing(by: float, start: float = 0) -> str:
    """Return the values of a series that grows each minute."""
    return f"{start}+{by}x{END}"


def breaking(before: str, after: str) -> str:
    """Return values that change at the break; `{n}` in `before` and `after` are the minutes that are left."""
    return f"{before.format(n=BREAK - 1)} {after.format(n=LEFT)}"


#: Unix time by a right clock.
CLOCK = growing(60)


def a_watcher(watcher: Mapping[str, str], ranks: tuple[str, ...]) -> dict[str, str]:
    """Return the series of a watcher that is well."""
    name = "dump_ingest_watcher_"
    of_process = {
        "up": constant(1),
        "process_start_time_seconds": constant(1),
        "dump_ingest_time_seconds": CLOCK,
        "dump_ingest_heartbeat_timestamp_seconds": CLOCK,
        "dump_ingest_expected_ranks": constant(0),
        "dump_ingest_finishes": constant(0),
        f"{name}last_look_timestamp_seconds": CLOCK,
        f"{name}ranks": constant(len(ranks)),
        f"{name}disk_free_bytes": constant(600e9),
        f"{name}disk_size_bytes": constant(1000e9),
        f"{name}disk_free_inodes": constant(5e6),
        f"{name}disk_inodes": constant(1e7),
        f"{name}quarantined_files_total": constant(0),
        "dump_ingest_rule_failures_total": constant(0),
    }
    of_rank = {
        f"{name}newest_step": growing(1),
        f"{name}committed_step": growing(1),
        f"{name}steps_behind": constant(0),
        f"{name}pending_steps": constant(0),
        f"{name}oldest_pending_timestamp_seconds": CLOCK,
        f"{name}last_commit_timestamp_seconds": CLOCK,
    }
    made = {series(metric, watcher): values for metric, values in of_process.items()}
    made[series("dump_ingest_store_info", watcher, store=STORE)] = constant(1)
    for kind in ("denied", "name", "other"):
        made[series(f"{name}problems", watcher, kind=kind)] = constant(0)
    for reason in ("store_unavailable", "cluster"):
        made[series(f"{name}troubles_total", watcher, reason=reason)] = constant(0)
    for reason in ("store_unavailable", "store_denied"):
        labels = {"op": "get", "reason": reason}
        made[series("dump_ingest_store_request_errors_total", watcher, **labels)] = constant(0)
    for rank in ranks:
        made |= {series(metric, watcher, rank=rank): values for metric, values in of_rank.items()}
    return made


def a_consolidator(consolidator: Mapping[str, str]) -> dict[str, str]:
    """Return the series of a consolidator that is well."""
    name = "dump_ingest_consolidator_"
    of_process = {
        "up": constant(1),
        "process_start_time_seconds": constant(1),
        "dump_ingest_time_seconds": CLOCK,
        "dump_ingest_heartbeat_timestamp_seconds": CLOCK,
        "dump_ingest_expected_ranks": constant(0),
        "dump_ingest_gc_last_success_timestamp_seconds": constant(0),
        "dump_ingest_gc_last_failure_timestamp_seconds": constant(0),
        f"{name}lease_held": constant(1),
        f"{name}ranks": constant(4),
        f"{name}last_round_timestamp_seconds": CLOCK,
        f"{name}oldest_waiting_timestamp_seconds": CLOCK,
        f"{name}fastest_rank_step": growing(1),
        f"{name}damaged_commits": constant(0),
    }
    made = {series(metric, consolidator): values for metric, values in of_process.items()}
    made[series("dump_ingest_store_info", consolidator, store=STORE)] = constant(1)
    for rank in "0123":
        made[series(f"{name}committed_step", consolidator, rank=rank)] = growing(1)
        made[series(f"{name}rank_steps_behind", consolidator, rank=rank)] = constant(0)
    return made


def healthy() -> dict[str, str]:
    """Return all series of a run that is well, by selector."""
    made = a_watcher(W1, ("0", "1")) | a_watcher(W2, ("2", "3")) | a_consolidator(C1)
    for other in (S1, K1):
        made[series("up", other)] = constant(1)
        made[series("process_start_time_seconds", other)] = constant(1)
    made[series("dask_scheduler_workers", S1, state="idle")] = constant(1)
    return made


def belongs_to(selector: str, target: Mapping[str, str]) -> bool:
    """Return whether a series is one of a target."""
    return f'instance="{target["instance"]}"' in selector


def gone(*targets: Mapping[str, str]) -> dict[str, str | None]:
    """Return the series of targets that disappear at the break, as a pod does that is evicted."""
    return {
        selector: cut(values)
        for selector, values in healthy().items()
        if any(belongs_to(selector, t) for t in targets)
    }


def down(*targets: Mapping[str, str]) -> dict[str, str | None]:
    """Return the series of targets that stay targets and do not answer any more."""
    return {**gone(*targets), **{series("up", target): breaking("1+0x{n}", "0+0x{n}") for target in targets}}


def never(*targets: Mapping[str, str]) -> dict[str, str | None]:
    """Return the series of targets that never exist."""
    return {selector: None for selector in healthy() if any(belongs_to(selector, t) for t in targets)}


def begun_at_break(values: str, after: int = 0) -> str:
    """Return values of the form `0+60x700` for a series that begins at the break, or minutes after it."""
    start, _, by = values.partition("x")[0].partition("+")
    begun = BREAK + after
    return f"_x{begun} {float(start) + float(by) * begun:g}+{by}x{END - begun}"


def away(values: str, at: int, minutes: int) -> str:
    """Return values of the form `0+60x700`, of which some minutes are not known."""
    start, _, by = values.partition("x")[0].partition("+")
    then = float(start) + float(by) * (at + minutes)
    return f"{start}+{by}x{at - 1} _x{minutes} {then:g}+{by}x{END - at - minutes}"


def begun_again(target: Mapping[str, str], after: int) -> dict[str, str | None]:
    """Return the series of a target that ends at the break, and of its next process some minutes later."""
    return {
        **gone(target),
        series("up", target): f"1x{BREAK - 1} stale _x{after} 1x{LEFT - after}",
        series("process_start_time_seconds", target): (
            f"1x{BREAK - 1} stale _x{after} {60 * (BREAK + after)}x{LEFT - after}"
        ),
    }


def cut(values: str) -> str:
    """Return values that end at the break."""
    return f"{values.rpartition('x')[0]}x{BREAK - 1} stale"


def renamed(changes: Mapping[str, str | None], old: str, new: str) -> dict[str, str | None]:
    """Return changes with other labels."""
    return {selector.replace(old, new): values for selector, values in changes.items()}


def w1(metric: str, values: str | None, **labels: str) -> dict[str, str | None]:
    """Return a change of the first watcher."""
    return {series(f"dump_ingest_watcher_{metric}", W1, **labels): values}


def c1(metric: str, values: str | None, **labels: str) -> dict[str, str | None]:
    """Return a change of the consolidator."""
    return {series(f"dump_ingest_consolidator_{metric}", C1, **labels): values}


STOPPED = f"0+1x{BREAK - 1} {BREAK - 1}+0x{LEFT}"
"""A step that stands still from the break on."""
OLD_CLOCK = f"0+60x{BREAK - 1} {60 * (BREAK - 1)}+0x{LEFT}"
"""A time that stands still from the break on."""
BROKEN_AT_BREAK = f"0+0x{BREAK - 1} 1+1x{LEFT}"
IDLE: dict[str, str | None] = {
    selector: STOPPED if "_step{" in selector else OLD_CLOCK
    for selector in healthy()
    if "_step{" in selector or "last_commit" in selector
}
"""A job that has written its last step."""
