"""How much of the processors a process takes."""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workers.errors import UsageError
from workers.host import resources
from workers.host.resources import CpuLimits, Throttle, format_cpus, parse_cpus
from workers.model import MIB

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("text", "numbers"), [("", set()), ("3", {3}), ("0-2, 8", {0, 1, 2, 8}), ("1,0-1", {0, 1})]
)
def test_processors_are_numbers_and_spans(text: str, numbers: set[int]) -> None:
    assert parse_cpus(text) == numbers
    assert parse_cpus(format_cpus(numbers)) == numbers


@pytest.mark.parametrize("text", ["all", "3-1", "-1", "1-", "0x3", "9999999"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="0-3,8"):
        parse_cpus(text)


def test_priority_and_processors_are_taken_by_the_process_and_what_it_starts() -> None:
    first = min(os.sched_getaffinity(0))
    code = (
        "import os, subprocess, sys\n"
        "from workers.errors import UsageError\n"
        "from workers.host.resources import CpuLimits\n"
        "before = os.nice(0)\n"
        f"CpuLimits(5, frozenset([{first}])).apply()\n"
        "CpuLimits(2).apply()\n"  # would be a higher one
        "try: CpuLimits(cpus=frozenset([99999])).apply()\n"
        "except UsageError as exc: print(exc)\n"
        "asked = 'import os; print(os.nice(0), *os.sched_getaffinity(0))'\n"
        "print(max(before, 5), subprocess.check_output([sys.executable, '-c', asked], text=True))"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT)
    message, hint, answer, *_ = said.splitlines()
    assert message == "cpus: none of 99999 is available here"
    assert hint == f"This process may use {first}."
    expected, nice, *cpus = answer.split()
    assert (nice, cpus) == (expected, [str(first)])


def test_where_changes_are_forbidden_only_asking_for_one_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by the units of systemd: `tests/integration/test_podman.py` runs one."""

    def forbid(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "nice", forbid)
    monkeypatch.setattr(os, "sched_setaffinity", forbid)
    monkeypatch.setattr(os, "getpriority", lambda *_: 0)
    CpuLimits().apply()
    for limits in (CpuLimits(nice=19), CpuLimits(cpus=frozenset(os.sched_getaffinity(0)))):
        with pytest.raises(UsageError, match="may not change its priority") as refused:
            limits.apply()
        assert "CPUAffinity=" in str(refused.value.hint)


def test_a_process_sleeps_for_what_it_used_above_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"used": 0.0, "now": 100.0}
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock["now"] += seconds

    monkeypatch.setattr(time, "process_time", lambda: clock["used"])
    monkeypatch.setattr(time, "monotonic", lambda: clock["now"])
    monkeypatch.setattr(time, "sleep", sleep)
    throttle = Throttle()

    def work(seconds: float) -> None:
        clock["used"] += seconds
        clock["now"] += seconds
        throttle.pay()

    work(1.0)
    assert slept == []
    throttle.limit(0.25)
    for _ in range(10):
        work(0.1)
    assert clock["used"] - 1.0 == pytest.approx(0.25 * (clock["now"] - 101.0))
    clock["now"] += 3600  # idle: does not count for later
    throttle.pay()
    slept.clear()
    work(0.2)
    assert sum(slept) == pytest.approx(0.2 / 0.25 - 0.2 - 0.05)
    work(100.0)
    assert slept[-1] == 1.0, "a process shows that it lives"


def test_a_container_may_have_less_than_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "resources.max"
    monkeypatch.setattr(resources, "_LIMIT_FILES", (str(limit), str(tmp_path / "missing")))
    machine = resources.machine_nbytes()
    assert machine > 64 * MIB
    limit.write_text("max\n")
    assert resources.machine_nbytes() == machine
    limit.write_text(f"{64 * MIB}\n")
    assert resources.machine_nbytes() == 64 * MIB


def test_what_is_left_follows_from_a_limit_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    used = resources.data_nbytes()
    assert used > 0
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert resources.data_left() is None
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + 64 * MIB, resource.RLIM_INFINITY))
    assert 0 < (resources.data_left() or 0) <= 65 * MIB
    assert resources.status_nbytes("VmNothing") == 0


def test_what_is_available_is_a_part_of_all() -> None:
    assert 0 < resources.available_nbytes() <= resources.machine_nbytes()
