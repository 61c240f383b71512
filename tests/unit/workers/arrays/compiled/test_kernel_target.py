"""For which processor kernels are compiled."""

import os
from pathlib import Path

import pytest
from llvmlite import binding  # type: ignore[import-untyped]

from workers.arrays.compiled import kernel_target
from workers.arrays.compiled.kernel_target import NEEDS, TARGETS, missing_features, processor, use_target


def test_shipped_kernels_are_left_alone_by_a_processor_that_cannot_execute_them() -> None:
    """It would end with an illegal instruction."""
    assert missing_features("x86-64-v3", {"avx2": True, "bmi2": True}) == NEEDS["x86-64-v3"] - {
        "avx2",
        "bmi2",
    }
    assert missing_features("x86-64-v3", dict.fromkeys(NEEDS["x86-64-v3"], True)) == set()
    assert missing_features("generic", {}) == set()
    assert missing_features("sparkling", {}) == {"sparkling"}
    assert set(TARGETS.values()) == set(NEEDS)


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of an installation that names the target; not there yet."""
    monkeypatch.setattr(kernel_target, "TARGET", tmp_path / "kernels.target")
    for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return tmp_path / "kernels.target"


@pytest.mark.parametrize(("text", "name"), [("generic\n", "generic"), ("sparkling", None), (None, None)])
def test_the_environment_names_a_target_that_this_processor_can_execute(
    target: Path, text: str | None, name: str | None
) -> None:
    if text is not None:
        target.write_text(text)
    use_target()
    assert os.environ.get("NUMBA_CPU_NAME") == name
    assert processor().startswith(name or binding.get_host_cpu_name())
