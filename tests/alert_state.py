"""A state of a deployment, as metrics show it, and the alerts that it must and must not raise.

A state is a run that is well and breaks, at `BREAK` minutes or from its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.alert_series import (
    BREAK,
    END,
    IDLE,
    LEFT,
    OLD_CLOCK,
    W1,
    a_watcher,
    breaking,
    c1,
    constant,
    healthy,
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
