"""The shipped alerts: their rules, the series of a run that is well, and what a broken one must raise."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

# The alert rules that are shipped, and a copy in which time passes faster.


DEPLOY = Path(__file__).parent.parent / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
PROMETHEUS = DEPLOY / "prometheus" / "prometheus.yml"
ALERTMANAGER = DEPLOY / "alertmanager" / "alertmanager.yml"

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: Every range must contain at least two scrapes; tests scrape once a second.
_SHORTEST_RANGE_MS = 4000


def shipped_alerts() -> list[dict[str, Any]]:
    """Return all alerts that the shipped rules define."""
    return [rule for rule in _rules() if "alert" in rule]


def recorded() -> set[str]:
    """Return the names of all series that the shipped rules record."""
    return {rule["record"] for rule in _rules() if "record" in rule}


@cache
def _rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def quickened(factor: float, into: Path, *, unchanged: Collection[str] = ()) -> Path:
    """Write a copy of the rules with every duration divided by `factor`, and return its path.

    In an expression, the durations are the ranges, the offsets, and the products with 60 or 3600.

    Args:
        factor: how many times as fast time passes.
        into: the directory of the copy.
        unchanged: groups in which it passes as it does.
    """
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"] if group["name"] not in unchanged else ():
            rule["expr"] = re.sub(
                r"\b(\d+) \* (60|3600)\b", lambda m: f"{int(m[1]) * int(m[2]) / factor:g}", rule["expr"]
            )
            rule["expr"] = re.sub(
                r"(\[|offset )(\d+)([smhd])\b", lambda m: f"{m[1]}{_range_ms(m, factor)}ms", rule["expr"]
            )
            if "for" in rule:
                seconds = int(rule["for"][:-1]) * _UNITS[rule["for"][-1]]
                rule["for"] = f"{int(1000 * seconds / factor)}ms"
    path = into / "quickened.yml"
    path.write_text(yaml.safe_dump(rules))
    return path


def _range_ms(match: re.Match[str], factor: float) -> int:
    """Return a range divided by `factor`, but not less than the shortest one that works."""
    return max(int(1000 * int(match[2]) * _UNITS[match[3]] / factor), _SHORTEST_RANGE_MS)


# The series of a run that is well, as `promtool` takes them, and how they change when something breaks.


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


# A state of a deployment, as metrics show it, and the alerts that it must and must not raise.
#
# A state is a run that is well and breaks, at `BREAK` minutes or from its beginning.


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
    holds: int = 0
    """Until which minute the alerts still fire, if the state is to be looked at again."""

    def case(self, end: int) -> dict[str, Any]:
        """Return the state as a test of promtool that looks at the alerts until a minute."""
        due = self.due or (WITHIN if self.from_start else BREAK + WITHIN)
        others = "|".join(f"DumpIngest{name}" for name in sorted(self.later)) or "none"
        fired = f'ALERTS{{alertstate="firing", alertname!~"{others}"}}'
        expected = [
            {"labels": f'{{alertname="DumpIngest{name}"}}', "value": 1} for name in sorted(self.fires)
        ]
        merged = {**healthy(), **self.changes}
        minutes = sorted({due, end} if end > due else {due})
        questions = [(minute, f"count_over_time({fired}[{minute}m])") for minute in minutes]
        if self.holds:
            questions.append((self.holds, fired))
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
                    "expr": f"group by (alertname) ({asked})",
                    "eval_time": f"{minute}m",
                    "exp_samples": expected,
                }
                for minute, asked in questions
            ],
        }


def alerts(*names: str) -> frozenset[str]:
    return frozenset(names)


def steps_apart(apart: int) -> dict[str, str | None]:
    """Return a job that ends while rank 1 has written fewer steps than the others."""
    return {
        **IDLE,
        **w1("steps_behind", breaking("0+0x{n}", f"{apart}+0x{{n}}"), rank="1"),
        **c1("rank_steps_behind", breaking("0+0x{n}", f"{apart}+0x{{n}}"), rank="1"),
    }


def finding(teller: Mapping[str, str], values: str, at: float, rule: str = "nan") -> dict[str, str | None]:
    """Return a finding at the break, told by a target."""
    labels = {"rank": "1", "rule": rule, "severity": "critical"}
    step = f"_x{BREAK} {values.format(value=40)}"
    time = f"_x{BREAK} {values.format(value=at)}"
    return {
        series("dump_ingest_last_finding_step", teller, **labels): step,
        series("dump_ingest_last_finding_timestamp_seconds", teller, **labels): time,
    }


NOW = 60 * BREAK
#: The back-off of a kubelet: 10 s, 20 s, 40 s ... at most 5 min; in whole minutes, up for one of them.
BACKING_OFF = (0, 1, 2, 4, 7, 11, *range(17, LEFT, 6))
LOOP_UP = " ".join("1" if minute in BACKING_OFF else "0" for minute in range(LEFT))
LOOP_STARTS = " ".join(str(NOW + 60 * m) if m in BACKING_OFF else "_" for m in range(LEFT))
STEADY_UP = " ".join("1" if minute % 6 == 0 else "0" for minute in range(LEFT))
STEADY_STARTS = " ".join(str(NOW + 60 * m) if m % 6 == 0 else "_" for m in range(LEFT))
NO_DUMP: dict[str, str | None] = (
    {selector: None for selector in a_watcher(W1, ("0", "1")) if 'rank="' in selector}
    | w1("last_look_timestamp_seconds", constant(0))
    | w1("ranks", constant(0))
    | w1("disk_free_bytes", None)
)
CYCLES = "400e9-1.65e9x119 " * (END // 120)
SLOW_WORK = {
    **w1("oldest_pending_timestamp_seconds", OLD_CLOCK, rank="1"),
    **w1("pending_steps", breaking("0+0x{n}", "2+0x{n}"), rank="1"),
}
LATER_LAG = alerts("LagHigh", "CommitsStalled")
B_SCHEDULER, B_WATCHER = target("scheduler", "sb", "b"), target("watcher", "nb", "b")
RUN_B: dict[str, str | None] = {
    series("up", B_WATCHER): constant(1),
    series("up", B_SCHEDULER): constant(1),
    series("dask_scheduler_workers", B_SCHEDULER, state="idle"): constant(8),
    series("dump_ingest_watcher_pending_steps", B_WATCHER, rank="0"): constant(2),
}

GC_JOB = 'namespace="train", cronjob="run1-dump-ingest-gc"'
