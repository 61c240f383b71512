"""Ranks of the same program: differences within the limits of types that rounding does not explain."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ingest.cli.exits import EXIT_DIFFERENT
from ingest.questions.compare import Comparison, Limits, Thresholds, Verdict, compare
from ingest.questions.compare.html import to_html
from tests.in_process import run_here
from tests.sharded_cases import BUGS, HARMLESS, short
from tests.sharded_net import LAYOUT, Config, simulate, write

#: Flags of a run that say how ranks hold tensors, or of which type they are.
LAYOUT_FLAGS = {"sequence parallel", "padded vocabulary", "fully sharded", "bfloat16"}


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs of three operators; the second is off by 1e-5, and the third by four times as much."""
    rng = np.random.default_rng(3)
    values = [rng.normal(size=(8, 16)).astype(np.float32) for _ in range(3)]
    off = [values[0], values[1] * np.float32(1 + 1e-5), values[2] * np.float32(1 + 4e-5)]
    sides = [
        write(tmp_path / name, [[dict(zip(("h0", "h1", "h2"), side, strict=True))]])
        for name, side in (("a", off), ("b", values))
    ]
    return sides[0], sides[1]


def run(a: Path, b: Path, thresholds: Thresholds | None = None) -> Comparison:
    return compare(a, b, layout=LAYOUT, keep_equal=True, thresholds=thresholds)


def test_the_derived_limit_decides(pair: tuple[Path, Path]) -> None:
    answer = run(*pair)
    assert (answer.verdict, answer.limits) == ("different", Limits.DERIVED)
    assert [row.verdict for row in answer.tensors] == [Verdict.EQUAL, Verdict.DIFFERENT, Verdict.DIFFERENT]
    assert answer.first is not None
    assert answer.first.tensor is answer.unexplained
    assert "h1" in answer.first.tensor.name
    assert "times the limit" in answer.first.reason
    bounds = [row.bound for row in answer.tensors]
    assert [bound is not None and bound.explained for bound in bounds] == [True, False, True]
    assert bounds[1] is not None
    assert bounds[1].times > 1
    plain = answer.to_dict()
    assert plain["limits"] == "derived"
    assert plain["unexplained"]["times"] == bounds[1].times
    assert {"limit", "times", "explained"} <= plain["tensors"][1].keys()
    page = to_html(answer)
    assert "Limits: derived" in page
    assert "<td>no</td>" in page


def test_fixed_limits_decide_on_request(pair: tuple[Path, Path]) -> None:
    answer = compare(*pair, layout=LAYOUT, keep_equal=True, fixed_limits=True)
    assert (answer.verdict, answer.limits) == ("close", Limits.FIXED)
    assert answer.first is None
    assert answer.unexplained is not None
    assert "h1" in answer.unexplained.name
    assert "1 tensor within the limits" in answer.notes[-1]
    across = compare(*pair, layout=LAYOUT, fixed_limits=True, across_layouts=True)
    assert (across.verdict, across.limits) == ("close", Limits.FIXED)
    assert compare(*pair, layout=LAYOUT, across_layouts=True).verdict == "different"


def test_the_command_prints_how_many_times_the_limit_it_is(pair: tuple[Path, Path]) -> None:
    derived = run_here("compare", *pair, "--layout", LAYOUT, code=EXIT_DIFFERENT)
    assert "first difference" in derived.stderr
    assert "times the limit" in derived.stdout
    fixed = run_here("compare", *pair, "--layout", LAYOUT, "--fixed-limits", "--json")
    assert (fixed.json["verdict"], fixed.json["limits"]) == ("close", "fixed")


def test_without_what_was_executed_before_fixed_limits_decide(pair: tuple[Path, Path]) -> None:
    answer = compare(*pair, layout=LAYOUT, name="*h2*")
    assert (answer.verdict, answer.limits) == ("close", Limits.FIXED)
    assert any("not derived: what was executed before the chosen" in note for note in answer.notes)


def test_limits_of_the_user_count_alone(pair: tuple[Path, Path]) -> None:
    answer = run(*pair, Thresholds.model_validate({"defaults": {"float32": {"relative_euclidean": 1e-3}}}))
    assert (answer.verdict, answer.limits) == ("close", Limits.GIVEN)
    assert answer.unexplained is None
    assert all(row.bound is None for row in answer.tensors)


@pytest.fixture(scope="module")
def same_layout(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Comparison]:
    """Compare a run, rank by rank, with one that is cut alike and has none of its flags."""
    root = tmp_path_factory.mktemp("nets")
    references: dict[tuple[object, ...], Path] = {}

    def against_alike(tp: int, dp: int, *flags: str, steps: int = 1) -> Comparison:
        kept = tuple(flag for flag in flags if flag in LAYOUT_FLAGS)
        key = tp, dp, kept, steps
        if key not in references:
            plain = simulate(Config(tp, dp, frozenset(kept), steps))
            references[key] = write(root / f"reference-{len(references)}", plain)
        name = "-".join([*flags, f"{tp}-{dp}-{steps}"])
        changed = write(root / name, simulate(Config(tp, dp, frozenset(flags), steps)))
        return compare(changed, references[key], layout=LAYOUT, across_layouts=False, ignore_unmatched=True)

    return against_alike


@pytest.mark.parametrize("case", BUGS, ids=[bug[0] for bug in BUGS])
def test_a_planted_mistake_is_found_rank_by_rank(
    same_layout: Callable[..., Comparison], case: tuple[str, int, int, int, str]
) -> None:
    """Next to harmless differences: the sums of the run with the mistake have another order, too."""
    bug, tp, dp, step, first = case
    answer = same_layout(tp, dp, bug, "blocked sums", steps=step + 1)
    assert (answer.verdict, answer.limits) == ("different", Limits.DERIVED)
    assert answer.first is not None
    # Both runs have the output of the projection in the same layout, so it is compared before its reader.
    nearer = {"layers.0.context": "layers.0.qkv"}
    tensor = answer.first.tensor
    assert (tensor.key_a.step, short(tensor.name)) == (step, nearer.get(first, first))


@pytest.mark.parametrize(("tp", "dp", "flags"), [case for case in HARMLESS if set(case[2]) - LAYOUT_FLAGS])
def test_a_harmless_change_is_not_reported_rank_by_rank(
    same_layout: Callable[..., Comparison], tp: int, dp: int, flags: tuple[str, ...]
) -> None:
    answer = same_layout(tp, dp, *flags, steps=2)
    assert answer.limits is Limits.DERIVED
    assert answer.is_within, [(t.name, t.reason) for t in answer.tensors if t.verdict is Verdict.DIFFERENT]
    assert answer.unexplained is None
