"""All states of a deployment; `promtool` evaluates the shipped rules over them."""

from __future__ import annotations

from typing import Any

from tests.alert_failures import SILENT_FAILURES
from tests.alert_false_alarms import FALSE_ALARMS
from tests.alert_series import (
    BREAK,
    END,
    constant,
    w1,
)
from tests.alert_state import (
    CYCLES,
    State,
    alerts,
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
STATES = (*SILENT_FAILURES, *FALSE_ALARMS, *DISKS)


def rules_tests(rules: str) -> dict[str, dict[str, Any]]:
    """Return the files that `promtool test rules` reads, by name; each looks as long as it has to."""

    def file(states: tuple[State, ...], interval: str, end: int) -> dict[str, Any]:
        tests = [state.case(end) for state in states]
        return {"rule_files": [rules], "evaluation_interval": interval, "tests": tests}

    short = tuple(state for state in SILENT_FAILURES if not state.holds)
    lasting = tuple(state for state in SILENT_FAILURES if state.holds)
    return {
        "failures": file(short, "1m", 0),
        "lasting_failures": file(lasting, "3m", 0),
        "false_alarms": file(FALSE_ALARMS, "3m", BREAK + 61),
        "disks": file(DISKS, "5m", END - 5),
    }
