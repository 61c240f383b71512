"""Runs whose ranks hold tensors in different ways: layouts of real dumps, planted mistakes, harmless changes.

`docs/layouts.md` has the table of what is found here.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.questions.compare import run
from ingest.questions.compare.html import to_html
from ingest.questions.compare.result import Comparison, Verdict
from ingest.questions.compare.run import compare
from ingest.questions.compare.thresholds import ThresholdRule, Thresholds
from ingest.questions.placement.layout_map import LayoutMap
from tests.damages import flip, only
from tests.dumps import unpack
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.sharded_cases import BUGS, HARMLESS, short
from tests.sharded_net import LAYOUT, Config, Dump, simulate, write
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey

Compare = Callable[..., Comparison]


@pytest.fixture(scope="module")
def against_one(tmp_path_factory: pytest.TempPathFactory) -> Compare:
    """Compare a run with one of a single process."""
    root = tmp_path_factory.mktemp("nets")
    references: dict[tuple[int, bool], Path] = {}

    def run(tp: int, dp: int, *flags: str, steps: int = 1, **options: object) -> Comparison:
        key = steps, "bfloat16" in flags
        if key not in references:
            plain = Config(flags=frozenset(["bfloat16"] if key[1] else []), steps=steps)
            references[key] = write(root / f"one-{steps}-{key[1]}", simulate(plain))
        name = f"{tp}-{dp}-{'-'.join(flags)}-{steps}"
        run_root = write(root / name, simulate(Config(tp, dp, frozenset(flags), steps)))
        given = {"keep_equal": True, "ignore_unmatched": True, "layout": LAYOUT} | options
        return compare(run_root, references[key], **given)  # type: ignore[arg-type]  # options of tests

    return run


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", BUGS, ids=[bug[0] for bug in BUGS])
def test_a_planted_mistake_is_found_where_it_is(
    against_one: Compare, case: tuple[str, int, int, int, str]
) -> None:
    bug, tp, dp, step, first = case
    found = against_one(tp, dp, bug, steps=step + 1)
    assert found.verdict == "different"
    assert found.first is not None
    assert (found.first.tensor.key_a.step, short(found.first.tensor.name)) == (step, first)
    assert found.first.reason


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("tp", "dp", "flags"), HARMLESS)
def test_a_harmless_change_is_not_reported(
    against_one: Compare, tp: int, dp: int, flags: tuple[str, ...]
) -> None:
    found = against_one(tp, dp, *flags)
    assert found.is_within, [(t.name, t.reason) for t in found.tensors if t.verdict is Verdict.DIFFERENT]
    assert {certainty for _, certainty in found.layout} == {"certain"}


@pytest.mark.parametrize("tp", [1, 2])
def test_stages_that_count_their_layers_from_0(tmp_path: Path, tp: int) -> None:
    """A pipeline of two stages: layers 0 and 1 on the first, layer 2 on the second, where it is layer 0."""
    (ranks,) = simulate(Config(tp, steps=1))
    run = write(tmp_path / "stages", [[*in_stage(ranks, 0, 2), *in_stage(ranks, 2, 3)]])
    one = write(tmp_path / "one", simulate(Config(steps=1)))
    for a, b in ((run, one), (one, run)):  # A is the side with more ranks, however they are given
        found = compare(a, b, layout=LAYOUT, keep_equal=True)
        assert found.is_within
        assert {certainty for _, certainty in found.layout} == {"certain"}
        assert found.counts[Verdict.ONLY_A] == found.counts[Verdict.ONLY_B] == 0
        assert any("ranks of A number layers.* from 0 each" in note for note in found.notes)


@pytest.mark.parametrize("tp", [1, 4])
def test_stages_against_shards_of_another_number(tmp_path: Path, tp: int) -> None:
    """Each piece of a stage is a part of one of the other side, or has one as a part, and gets its name."""
    stages = simulate(Config(2, steps=1))[0]
    run = write(tmp_path / "stages", [[*in_stage(stages, 0, 2), *in_stage(stages, 2, 3)]])
    other = write(tmp_path / "other", simulate(Config(tp, steps=1)))
    for a, b in ((run, other), (other, run)):
        found = compare(a, b, layout=LAYOUT, across_layouts=True)
        assert any("number layers.* from 0 each" in note for note in found.notes)
        assert found.is_within
        assert found.counts[Verdict.ONLY_A] == found.counts[Verdict.ONLY_B] == 0


def in_stage(ranks: list[Dump], first: int, last: int) -> list[Dump]:
    """Return what ranks dump of some layers, numbered from 0; what is in none is of the ends."""
    dumps = []
    for dump in ranks:
        own: Dump = {}
        for name, values in dump.items():
            before, _, after = name.partition("layers.")
            number, _, rest = after.partition(".")
            if number and first <= int(number) < last:
                own[f"{before}layers.{int(number) - first}.{rest}"] = values
            elif not number and ("embed" in name or "input" in name) == (first == 0):
                own[name] = values
        dumps.append(own)
    return dumps


def test_an_optimizer_that_enlarges_rounding_is_no_mistake(against_one: Compare) -> None:
    assert against_one(2, 1, "blocked sums", steps=2).is_within
    found = against_one(2, 2, "other optimizer kernel", "ring reduction", steps=2)
    assert found.is_within
    assert {certainty for _, certainty in found.layout} == {"certain"}


def test_reasons_say_what_a_mistake_looks_like(against_one: Compare) -> None:
    reasons = {}
    for bug, tp, dp in (
        ("sign of a gradient", 2, 1),
        ("gradients are summed", 1, 2),
        ("missing reduction", 2, 1),
    ):
        first = against_one(tp, dp, f"BUG {bug}").first
        assert first is not None
        reasons[bug] = first.reason
    assert "it is -1 times B" in reasons["sign of a gradient"]
    assert "it is 2 times B" in reasons["gradients are summed"]
    assert "each rank holds a part of the sum, and computed" in reasons["missing reduction"]


def test_what_values_cannot_show_is_no_difference_but_told(against_one: Compare) -> None:
    found = against_one(1, 2, "BUG a gradient is not reduced")
    assert found.verdict == "close"
    note = next(note for note in found.notes if "holds its part of" in note)
    assert "grad.param.layers.2.fc2.weight" in note
    assert "the parameters of the next step show" in note


def test_ranks_that_read_another_batch_are_compared_with_those_that_read_the_same(tmp_path: Path) -> None:
    stores = []
    for tp in (2, 1):
        dump = write(tmp_path / f"tp{tp}", simulate(Config(tp=tp, dp=2, steps=1)))
        ingest_directly(dump, tmp_path / f"tp{tp}.zarr", layout=LAYOUT)
        stores.append(ingest.open_store(tmp_path / f"tp{tp}.zarr", mesh=f"dp=2,tp={tp}"))
    found = compare(*stores, keep_equal=True, ignore_unmatched=True)
    assert found.verdict == "close"
    tokens = [row for row in found.tensors if short(row.name) == "input_ids"]
    assert [
        (row.verdict, row.held and row.held.ranks_a, row.held and row.held.ranks_b) for row in tokens
    ] == [
        (Verdict.EQUAL, (0, 1), (0,)),
        (Verdict.EQUAL, (2, 3), (1,)),
    ]


def test_what_nothing_was_computed_from_is_no_difference(against_one: Compare) -> None:
    found = against_one(2, 1, "BUG a rank reads other tokens")
    assert found.verdict == "close"
    (unread,) = [row for row in found.tensors if row.verdict is Verdict.NOT_READ]
    assert short(unread.name) == "input_ids"
    assert "nothing was computed from it" in unread.reason


def test_a_limit_is_told_with_how_often_it_is_exceeded(against_one: Compare) -> None:
    found = against_one(2, 1, "BUG scale of the scores")
    assert found.first is not None
    bound = found.first.tensor.bound
    assert bound is not None
    assert bound.limit < 1e-5
    assert bound.times > 1000
    assert not bound.explained
    assert "times the limit" in found.first.reason
    later = next(row for row in found.tensors if short(row.name) == "layers.1.norm2")
    assert later.verdict is Verdict.DIFFERENT
    assert later.bound is not None
    assert later.bound.explained


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("real")
    unpack("pt/parallel-layouts", into)
    return into / "parallel-layouts"


@pytest.mark.parametrize("name", ["tp2", "tp2-bias"])
def test_layouts_of_real_tensor_parallelism_are_right(real: Path, name: str) -> None:
    """Of DTensors, without names of mesh dimensions and annotations: right or open, never wrong."""
    oracle = json.loads((real / "oracle.json").read_text())[name]
    found = compare(real / name, real / "tp1", layout="rank{rank}.pt", keep_equal=True)
    rows = {short(row.name): row for row in found.tensors}
    kinds = {"shard": "shard {}", "partial_sum": "partial sum", "replicated": "replicated"}
    told = {key: kinds[kind].format(axis) for key, kind, axis, _ in oracle["tensors"] if kind in kinds}
    shown = {key: rows[key].held for key in told}
    wrong = {
        key: held.placement
        for key, held in shown.items()
        if held is not None and held.certainty != "open" and held.placement != told[key]
    }
    assert wrong == {}
    certain = sum(held is not None and held.certainty == "certain" for held in shown.values())
    assert certain >= len(told) - 4  # gradients that are zero in theory are known by shape alone
    first = found.first.tensor if found.first else None
    assert (short(first.name) if first else None) == oracle["first_wrong"]
    assert found.verdict == ("close" if name == "tp2" else "different")


def test_shards_of_fully_sharded_data_parallelism_are_right(real: Path) -> None:
    layout = "rank{rank}/step{step}/{io:grad}.{module}.pt"
    oracle = json.loads((real / "oracle.json").read_text())["fsdp2"]["tensors"]
    found = compare(real / "fsdp2", real / "ddp", layout=layout, across_layouts=True, keep_equal=True)
    assert found.verdict == "equal"
    assert {row.held.placement for row in found.tensors if row.held} == {"shard 0 | replicated"}
    assert len(found.tensors) == len(oracle)


def test_a_layout_map_settles_what_is_open(tmp_path: Path) -> None:
    """Constant tensors may be cut along either axis; what differs, in no way that values show."""
    rng = np.random.default_rng(0)
    noise = [rng.normal(size=(4, 4)).astype(np.float32) for _ in range(3)]
    ones = np.ones((4, 2, 2), np.float32)
    write(tmp_path / "a", [[{"x": noise[0], "ones": ones}, {"x": noise[1], "ones": ones}]])
    write(tmp_path / "b", [[{"x": noise[2], "ones": np.ones((4, 2, 2), np.float32)}]])
    (row,) = (r for r in compare(tmp_path / "a", tmp_path / "b", layout=LAYOUT).tensors if "x" in r.name)
    assert row.held is not None
    assert (row.verdict, row.held.certainty) == (Verdict.UNKNOWN, "open")
    mapped = LayoutMap.model_validate({"placements": [{"name": "*x*", "a": "partial sum"}]})
    found = compare(tmp_path / "a", tmp_path / "b", layout=LAYOUT, layout_map=mapped)
    (row,) = (r for r in found.tensors if "x" in r.name)
    assert row.held is not None
    assert (row.verdict, row.held.placement, row.held.certainty) == (
        Verdict.DIFFERENT,
        "partial sum",
        "mapped",
    )
    wrong = LayoutMap.model_validate({"placements": [{"name": "*x*", "a": "shard 0"}]})
    found = compare(tmp_path / "a", tmp_path / "b", layout=LAYOUT, layout_map=wrong)
    assert any("the layout map says shard 0" in row.reason for row in found.tensors)


@pytest.mark.parametrize(
    ("order", "verdict", "certainty", "placement"),
    [
        ((0, 3), Verdict.EQUAL, "certain", "zigzag 0 of each sequence (8+16+24)"),
        ((3, 0), Verdict.UNKNOWN, "open", "?"),
    ],
)
def test_sequences_that_are_cut_one_by_one(
    tmp_path: Path, order: tuple[int, int], verdict: Verdict, certainty: str, placement: str
) -> None:
    """Packed sequences of 8, 16 and 24 tokens (THD), each cut over two ranks in zigzag or in no known way."""
    tokens = np.random.default_rng(1).normal(size=(48, 4)).astype(np.float32)
    chunks = [np.split(sequence, 4) for sequence in np.split(tokens, [8, 24])]
    ranks: list[Dump] = [
        {"out": np.concatenate([cut[abs(place - rank)] for cut in chunks for place in order])}
        for rank in (0, 1)
    ]
    write(tmp_path / "a", [ranks])
    write(tmp_path / "b", [[{"out": tokens}]])
    (row,) = compare(tmp_path / "a", tmp_path / "b", layout=LAYOUT, keep_equal=True).tensors
    assert row.held is not None
    assert (row.verdict, row.held.certainty, row.held.placement) == (verdict, certainty, placement)
    assert placement != "?" or "sequences which are cut one by one" in row.reason


def test_flat_parameters_that_hold_several_have_no_counterpart(tmp_path: Path) -> None:
    """FSDP1 without `use_orig_params` joins the parameters of a unit, and cuts the result."""
    rng = np.random.default_rng(2)
    whole: Dump = {
        "param.fc.weight": rng.normal(size=(6, 5)).astype(np.float32),
        "param.fc.bias": rng.normal(size=6).astype(np.float32),
        "out.fc": rng.normal(size=(4, 6)).astype(np.float32),
    }
    flat = np.concatenate([whole["param.fc.weight"].ravel(), whole["param.fc.bias"]])
    ranks: list[Dump] = [
        {"param.fc._flat_param": part, "out.fc": whole["out.fc"]} for part in np.split(flat, 2)
    ]
    write(tmp_path / "a", [ranks])
    write(tmp_path / "b", [[whole]])
    found = compare(tmp_path / "a", tmp_path / "b", layout=LAYOUT, keep_equal=True)
    rows = {short(row.name_a or row.name_b): row for row in found.tensors}
    assert {name: row.verdict for name, row in rows.items()} == {
        "param.fc._flat_param": Verdict.ONLY_A,
        "param.fc.weight": Verdict.ONLY_B,
        "param.fc.bias": Verdict.ONLY_B,
        "out.fc": Verdict.EQUAL,
    }
    assert rows["param.fc._flat_param"].held is None
    (note,) = (note for note in found.notes if "flat" in note)
    assert "1 tensor of A" in note
    assert "use_orig_params=True" in note


def test_ranks_are_compared_by_number_on_request(against_one: Compare) -> None:
    found = against_one(2, 1, across_layouts=False)
    assert not found.layout
    assert found.counts[Verdict.SHAPE] > 0


def test_results_in_json_and_html_have_the_layout(against_one: Compare) -> None:
    found = against_one(2, 1, "BUG shards are swapped")
    plain = found.to_dict()
    assert {"placement": "replicated", "certainty": "certain"}.items() <= plain["layout"][0].items() | set()
    row = plain["tensors"][0]
    assert (row["ranks_a"], row["ranks_b"], row["placement"]) == ([0, 1], [0], "replicated")
    page = to_html(found)
    assert "<h2>Layout</h2>" in page
    assert "blocks 2 (8+8+8 per rank)" in page


def test_conditions_and_steps_that_fit_nothing_are_errors(against_one: Compare, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="conditions on tensors"):
        against_one(2, 1, role="weight")
    write(tmp_path / "a", [[{"x": np.ones(2, np.float32)}] * 2])
    write(tmp_path / "b", [[{"y": np.ones((3, 3), np.float32)}]])
    with pytest.raises(UsageError, match="no tensor of"):
        compare(tmp_path / "a", tmp_path / "b", layout=LAYOUT)
    later = write(tmp_path / "c", [[{}], [{"x": np.ones(2)}] * 2])
    with pytest.raises(UsageError, match="no step in common"):
        compare(f"{later}@step=1", tmp_path / "a", layout=LAYOUT, across_layouts=True)


def test_rules_that_ignore_tensors_count_for_those_that_cannot_be_compared(tmp_path: Path) -> None:
    """One that only a side has, and text, of which nothing can be put together."""
    whole, text = np.arange(8, dtype=np.float32).reshape(4, 2), np.array(["a", "b"])
    ranks: list[Dump] = [
        {"x": half, "label": text[rank:], "own": whole} for rank, half in enumerate((whole[:2], whole[2:]))
    ]
    one = write(tmp_path / "one", [[{"x": whole, "label": np.array(["c"]), "other": whole}]])
    two = write(tmp_path / "two", [ranks])
    rules = [ThresholdRule(name=f"*{name}*", ignore=True) for name in ("label", "own", "other")]
    plain = compare(two, one, layout=LAYOUT)
    assert {plain.counts[verdict] for verdict in (Verdict.UNKNOWN, Verdict.ONLY_A, Verdict.ONLY_B)} == {1}
    ruled = compare(two, one, layout=LAYOUT, thresholds=Thresholds(rules=rules))
    assert ruled.counts == {Verdict.IGNORED: 3, Verdict.EQUAL: 1}
    assert ruled.is_within


def test_the_worst_of_many_tensors_are_listed_in_order(
    against_one: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = against_one(2, 1)
    monkeypatch.setattr(run, "MAX_LISTED", 3)
    few = against_one(2, 1)
    assert few.counts == whole.counts
    worst = {row.name for row in whole.worst(3)}
    assert [row.name for row in few.tensors] == [row.name for row in whole.tensors if row.name in worst]
    assert any("only the 3 worst tensors are listed" in note for note in few.notes)


@pytest.fixture
def halves(tmp_path: Path) -> tuple[MadeDump, Path, Path]:
    """A dump of three steps whose two ranks have a half of a tensor each; its store; one of whole tensors."""
    cut, whole = MadeDump(tmp_path / "cut"), MadeDump(tmp_path / "whole")
    values = np.random.default_rng(3).normal(size=(6, 8)).astype(np.float32)
    for step in range(3):
        whole.add(values, tensor_name(time=step + 1), step=step)
        for rank, half in enumerate(np.split(values, 2)):
            cut.add(half, tensor_name(time=step + 1), step=step, rank=rank)
    ingest_directly(whole.root, tmp_path / "whole.zarr")
    return cut, tmp_path / "cut.zarr", tmp_path / "whole.zarr"


@pytest.mark.parametrize("flaw", ["missing", "partial", "damaged"])
def test_a_step_that_a_rank_lacks_is_left_out_and_a_difference(
    halves: tuple[MadeDump, Path, Path], flaw: str
) -> None:
    """The other ranks alone would make up another tensor."""
    cut, store, whole = halves
    if flaw == "missing":
        shutil.rmtree(cut.directory(1, rank=1))
    if flaw == "partial":
        cut.add(b"not npy", step=1, rank=1)
    ingest_directly(cut.root, store)
    if flaw == "damaged":
        flip(only(store, "rank_1/step_1/*/statistics/c/0/0"))
    for sides in ((store, whole), (whole, store), *([(cut.root, whole)] if flaw != "damaged" else [])):
        found = compare(*sides)
        assert [left.key for _, left in found.left_out] == [StepKey(1, 1)]
        assert found.left_out[0][1].reason.startswith(flaw)
        assert (found.counts, found.only_a, found.only_b) == ({Verdict.EQUAL: 2}, (), ())
        assert (found.verdict, found.incomplete) == ("different", 1)
        assert compare(*sides, ignore_unmatched=True).is_within
    if flaw != "missing":  # the rank of which is not known if nothing else is asked for
        with pytest.raises((UsageError, DamagedStore), match="rank 1 step 1"):
            compare(f"{store}@step=1", f"{whole}@step=1", across_layouts=True)


def test_a_step_that_a_rank_lacks_is_compared_on_request(halves: tuple[MadeDump, Path, Path]) -> None:
    cut, _, whole = halves
    shutil.rmtree(cut.directory(1, rank=1))
    found = compare(cut.root, whole, include_partial=True)
    assert (len(found.steps), found.left_out) == (3, ())


def test_a_reference_whose_replicas_differ_is_not_equal(tmp_path: Path) -> None:
    """Whichever of them is like A: as if A and B were exchanged."""
    values = np.random.default_rng(4).normal(size=(6, 8)).astype(np.float32)
    replicas: list[Dump] = [{"x": values}, {"x": values * np.float32(1.5)}]
    one = write(tmp_path / "one", [[{"x": values}]])
    for order in (1, -1):
        two = write(tmp_path / f"two{order}", [replicas[::order]])
        assert compare(one, two, layout=LAYOUT).verdict == "different"
        assert compare(two, one, layout=LAYOUT).verdict == "different"


def test_a_run_is_equal_to_itself(nan_log: str) -> None:
    """Whatever of it is odd: each rank has a loss of its own, and some gradients are equal by chance."""
    found = compare(nan_log, nan_log, across_layouts=True)
    assert (found.verdict, found.counts) == ("equal", {Verdict.EQUAL: 729})
