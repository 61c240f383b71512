"""Replicas and repeated steps of a run show by how much rounding alone makes its results differ."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pytest

from ingest.questions.compare import Comparison, Verdict, compare
from ingest.questions.compare.html import to_html
from ingest.questions.compare.own_spread import OwnSpread
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT, Config, simulate, write
from tests.two_ranks import TIME

RNG = np.random.default_rng(31)
VALUES = [RNG.normal(size=(32, 48)).astype(np.float32) for _ in range(4)]
#: Of two runs, in units of what rounding explains here: 4 (u + sqrt(48) u).
BASE = 4 * 2.0**-24 * (1 + 48**0.5)


@pytest.fixture(autouse=True)
def _same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test the same noise, whichever tests run before it."""
    monkeypatch.setattr(sys.modules[__name__], "RNG", np.random.default_rng(32))


def off(values: npt.NDArray[np.float32], by: float) -> npt.NDArray[np.float32]:
    """Return values that differ by noise of this relative size."""
    return (values * (1 + by * RNG.standard_normal(values.shape))).astype(np.float32)


def dump(root: Path, noise: Sequence[float], steps: int = 1) -> Path:
    """Write four results that all ranks share, but for noise in the third, which differs by rank."""
    ranks = [
        [{f"h{n}": off(v, by if n == 2 else 0.0) for n, v in enumerate(VALUES)} for by in noise]
        for _ in range(steps)
    ]
    return write(root, ranks)


def by_rank(a: Path, b: Path, **options: Any) -> Comparison:
    return compare(a, b, across_layouts=False, keep_equal=True, **options)


@pytest.mark.parametrize(
    ("noise", "of_reference"),
    [
        ([5 * BASE] * 4, [5 * BASE] * 4),  # both runs are noisy
        ([5 * BASE] * 4, [0.0] * 4),  # A is, and two other replicas show it
        ([5 * BASE] * 2, [5 * BASE] * 2),
        ([5 * BASE], [5 * BASE] * 2),  # only the reference has replicas
    ],
)
@pytest.mark.parametrize("stored", [False, True])
def test_noise_of_replicas_is_not_reported(
    tmp_path: Path, noise: list[float], of_reference: list[float], *, stored: bool
) -> None:
    a, b = dump(tmp_path / "a", noise), dump(tmp_path / "b", of_reference)
    if stored:
        for side in ("a", "b"):
            ingest_directly(tmp_path / side, tmp_path / f"{side}.zarr", layout=LAYOUT)
        a, b = tmp_path / "a.zarr", tmp_path / "b.zarr"
    answer = by_rank(a, b, **({} if stored else {"layout": LAYOUT}))
    assert not answer.counts[Verdict.DIFFERENT], [tensor.reason for tensor in answer.tensors]
    noisy = [tensor for tensor in answer.tensors if "h2" in tensor.name]
    assert {tensor.verdict for tensor in noisy} == {Verdict.CLOSE}
    assert all("replicas of the same run allow for" in tensor.reason for tensor in noisy)
    assert all(tensor.bound is not None and tensor.bound.spread > BASE for tensor in noisy)
    assert noisy[0].to_dict()["spread"] > BASE
    assert any("no more than replicas within one of the runs" in note for note in answer.notes)
    assert "replicas of the same run allow" in to_html(answer)


@pytest.mark.parametrize(
    ("noise", "of_reference"),
    [
        ([0.0, 5 * BASE, 0.0, 0.0], [0.0] * 4),  # its other replicas are equal
        ([0.0, 5 * BASE], [0.0] * 2),  # those of the reference are
        ([5 * BASE], [0.0]),  # nothing shows a spread
        ([40 * BASE] * 4, [40 * BASE] * 4),  # replicas so far apart are none
    ],
)
def test_a_rank_that_is_off_is_reported(
    tmp_path: Path, noise: list[float], of_reference: list[float]
) -> None:
    answer = by_rank(dump(tmp_path / "a", noise), dump(tmp_path / "b", of_reference), layout=LAYOUT)
    different = {t.key_a.rank for t in answer.tensors if t.verdict is Verdict.DIFFERENT}
    assert different == {rank for rank, by in enumerate(noise) if by}
    assert answer.first is not None
    assert "h2" in answer.first.tensor.name


def test_the_result_of_a_mistake_is_no_replica(tmp_path: Path) -> None:
    """All ranks are off by the same: they agree with each other, and not with the reference."""
    changed = [*VALUES[:2], VALUES[2] * np.float32(1 + 5 * BASE), VALUES[3]]
    dumps = [{f"h{n}": v for n, v in enumerate(changed)}] * 4
    answer = by_rank(write(tmp_path / "a", [dumps]), dump(tmp_path / "b", [0.0] * 4), layout=LAYOUT)
    assert answer.counts[Verdict.DIFFERENT] == 4


def test_nothing_is_read_unless_a_verdict_hangs_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Mock(wraps=OwnSpread().measure)
    monkeypatch.setattr(OwnSpread, "measure", lambda _, *arguments: asked(*arguments))
    b = dump(tmp_path / "b", [0.0] * 2)
    assert by_rank(dump(tmp_path / "a", [BASE / 8] * 2), b, layout=LAYOUT).is_within
    assert not by_rank(dump(tmp_path / "far", [0.01] * 2), b, layout=LAYOUT).is_within
    assert not asked.called
    assert by_rank(dump(tmp_path / "c", [5 * BASE] * 2), b, layout=LAYOUT, fixed_limits=True).is_within
    assert not by_rank(dump(tmp_path / "d", [5 * BASE] * 2), b, layout=LAYOUT).is_within
    assert [len(call.args[-1]) for call in asked.call_args_list] == [1] * 4


def test_a_step_is_repeated_if_the_operator_read_the_same_bytes(tmp_path: Path) -> None:
    """One rank, whose kernel gives something else in each step."""
    for name, inputs in (("same", VALUES[:1] * 2), ("other", VALUES[:2])):
        for side in ("a", "b"):
            made = MadeDump(tmp_path / name / side)
            for step, values in enumerate(inputs):
                made.add(values, tensor_name(io="input", time=TIME), step=step)
                made.add(off(VALUES[2], 5 * BASE), tensor_name(time=TIME + 1), step=step)
            ingest_directly(made.root, tmp_path / name / f"{side}.zarr")
    assert by_rank(tmp_path / "same/a.zarr", tmp_path / "same/b.zarr").is_within
    assert not by_rank(tmp_path / "other/a.zarr", tmp_path / "other/b.zarr").is_within


@pytest.mark.parametrize("flags", [("blocked sums",), ("other norm kernel", "ring reduction")])
def test_a_net_with_noisy_reductions_is_not_reported(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Gradients and parameters of data-parallel replicas differ, since reductions add up in any order."""
    runs = []
    for name, kept in (("a", flags), ("b", ())):
        simulated = simulate(Config(1, 4, frozenset(kept), 1))
        for step in simulated:
            for rank in step:
                for tensor, values in rank.items():
                    if tensor.startswith(("Module..grad.param", "Module..param")) or "grad.param" in tensor:
                        rank[tensor] = off(np.asarray(values), 2e-5)
        runs.append(write(tmp_path / name, simulated))
    answer = by_rank(*runs, layout=LAYOUT)
    assert answer.is_within, [(t.name, t.reason) for t in answer.tensors if t.verdict is Verdict.DIFFERENT]
