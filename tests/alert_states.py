"""All states of a deployment; `promtool` evaluates the shipped rules over them."""

from __future__ import annotations

import re
from typing import Any

from tests.alert_failures import SILENT_FAILURES
from tests.alert_false_alarms import FALSE_ALARMS
from tests.alerts import (
    BREAK,
    CYCLES,
    END,
    W1,
    State,
    alerts,
    away,
    constant,
    gone,
    healthy,
    w1,
)

#: What somebody must be told of disks, and what not: they take hours.
DISKS = (
    State(
        "a disk that is nearly full, and fills",
        w1("disk_free_bytes", "300e9-1.2e9x240 12e9+0x600"),
        alerts("DiskFilling"),
        due=145,
        later=alerts("DiskFull"),
    ),
    State(
        "a shared disk that is always 96 % full",
        w1("disk_free_bytes", constant(40e9)),
        spares=alerts("DiskFull", "DiskFilling"),
    ),
    State(
        "a shared disk that swings between 95 % and 97 %",
        w1("disk_free_bytes", "50e9-0.5e9x39 30e9+0.5e9x39 " * (END // 80)),
        spares=alerts("DiskFull", "DiskFilling"),
    ),
    State(
        "a cleanup every two hours", w1("disk_free_bytes", CYCLES), spares=alerts("DiskFilling", "DiskFull")
    ),
    State(
        "a cleanup every two hours on a disk that is nearly full",
        w1("disk_free_bytes", "160e9-1e9x119 " * (END // 120)),
        later=alerts("DiskFilling"),
        spares=alerts("DiskFull"),
    ),
)
#: What must still be known when Prometheus is back.
OUTAGES = (
    State(
        "a watcher that is evicted, and then Prometheus is away for twelve minutes",
        {**{selector: away(values, 40, 11) for selector, values in healthy().items()}, **gone(W1)},
        alerts("TargetsLost"),
        due=65,
    ),
)
STATES = (*SILENT_FAILURES, *FALSE_ALARMS, *DISKS, *OUTAGES)


def together(states: tuple[State, ...], end: int) -> list[dict[str, Any]]:
    """Return states as one test of promtool, each as a run of its own; those that cannot be one stay alone.

    So every run is also seen beside all others, which must neither mute it nor page for it.
    """
    together: dict[str, Any] = {
        "name": "runs beside one another",
        "interval": "1m",
        "input_series": [],
        "promql_expr_test": [],
    }
    alone = []
    for number, state in enumerate(states):
        case = state.case(end)
        if not all(re.search(r'run="[ab]"', each["series"]) for each in case["input_series"]):
            alone.append(case)
            continue
        own = f"s{number}"
        for each in case["input_series"]:
            renamed = re.sub(r'(run|job)="([ab])(?=["/])', rf'\1="{own}\2', each["series"])
            together["input_series"].append({"series": renamed, "values": each["values"]})
        for question in case["promql_expr_test"]:
            firing = 'alertstate="firing"'
            asked = question["expr"].replace(firing, f'{firing}, run=~"{own}[ab]"')
            assert asked != question["expr"]
            together["promql_expr_test"].append({**question, "expr": asked})
    return [together, *alone]


def rules_tests(rules: str) -> dict[str, dict[str, Any]]:
    """Return the files that `promtool test rules` reads, by name; each looks as long as it has to."""

    def file(tests: list[dict[str, Any]], interval: str) -> dict[str, Any]:
        return {"rule_files": [rules], "evaluation_interval": interval, "tests": tests}

    short = tuple(state for state in SILENT_FAILURES if not state.holds)
    lasting = [state.case(0) for state in SILENT_FAILURES if state.holds]
    return {
        "failures": file(together(short, 0), "3m"),
        "lasting_failures": file(lasting, "5m"),
        # While Prometheus is away, it evaluates nothing: as if it came back every thirteen minutes.
        "outages": file([state.case(0) for state in OUTAGES], "13m"),
        "false_alarms": file(together(FALSE_ALARMS, BREAK + 61), "3m"),
        "disks": file(together(DISKS, END - 5), "5m"),
    }
