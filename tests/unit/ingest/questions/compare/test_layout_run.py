"""Runs whose ranks hold tensors in different ways."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

import ingest
from ingest.api import open_store
from ingest.questions.compare import placing, run
from ingest.questions.compare.calls import are_cut_into_other_calls
from ingest.questions.compare.held_tensors import HeldTensors, hold_together
from ingest.questions.compare.html import to_html
from ingest.questions.compare.rank_names import renumbered, with_tied_weights
from ingest.questions.compare.result import Comparison, Verdict
from ingest.questions.compare.run import compare
from ingest.questions.compare.selection import Selection, parse_selection
from ingest.questions.compare.sources import StepTensors, keys_of, load_step, open_source
from ingest.questions.compare.thresholds import ThresholdRule, Thresholds
from ingest.questions.placement.layout_map import LayoutMap
from ingest.reader.mesh import Mesh
from tests.damages import flip, only
from tests.sharded_net import BUGS, HARMLESS, LAYOUT, Array, Config, Dump, short, simulate, write
from tests.stores import DumpLibrary, MadeDump, ingest_directly, tensor_name, unpack
from workers.arrays.digest import digest
from workers.dump.formats.header import TensorHeader
from workers.dump.model import TensorName
from workers.errors import DamagedStore, UsageError
from workers.model import SourceFile, StepKey
from workers.store import commit
from workers.store.consolidated.blocks import TensorKey
from workers.store.model import Grid, RowKind, StoreAddress
from workers.store.opening import open_objects
from workers.store.record import WithoutTensors
from workers.tasks.compare import search_placement
from workers.tasks.model import Entry
from workers.tasks.operands import read_whole

# Runs whose ranks hold tensors in different ways: layouts of real dumps, planted mistakes, harmless changes.
#
# `docs/layouts.md` has the table of what is found here.


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


# Marginals propose how ranks hold a tensor; elements confirm it, or are gone.


RNG = np.random.default_rng(11)
#: Large enough for marginals of both axes, also of halves.
SHAPE = (512, 640)
WHOLE = {name: RNG.normal(size=SHAPE).astype(np.float32) for name in ("rows", "columns", "sum", "same")}
NOISE = RNG.normal(size=SHAPE).astype(np.float32)
SUM = [WHOLE["sum"] - NOISE, NOISE]
RANKS: list[Dump] = [
    {
        "rows": np.split(WHOLE["rows"], 2)[rank],
        "columns": np.split(WHOLE["columns"], 2, axis=1)[rank],
        "sum": SUM[rank],
        "same": WHOLE["same"],
        "small": np.arange(6, dtype=np.float32).reshape(2, 3)[:, rank : rank + 2],
    }
    for rank in (0, 1)
]
HELD = {"rows": "shard 0", "columns": "shard 1", "sum": "partial sum", "same": "replicated"}


def stored(root: Path, name: str, ranks: list[Dump]) -> Path:
    store = root / f"{name}.zarr"
    ingest_directly(write(root / name, [ranks]), store, layout=LAYOUT, sketches=True)
    return store


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two ranks, and one that has all."""
    root = tmp_path_factory.mktemp("marginals")
    return stored(root, "two", RANKS), stored(root, "one", [WHOLE])


def placements(answer: Comparison) -> dict[str, tuple[str, str]]:
    return {
        row.name_a.split(".")[2]: (row.held.placement, row.held.certainty)
        for row in answer.tensors
        if row.held is not None
    }


def test_only_what_marginals_leave_open_is_searched_by_elements(stores: tuple[Path, Path]) -> None:
    with patch.object(placing, "search_placement", wraps=search_placement) as searching:
        answer = compare(*stores, keep_equal=True, ignore_unmatched=True)
    assert placements(answer) == {name: (how, "certain") for name, how in HELD.items()}
    assert answer.is_within
    assert not searching.called
    (row,) = (row for row in answer.tensors if ".sum." in row.name)
    assert row.held is not None
    assert "by marginals, every other plain way is off by" in row.held.explanation


def test_elements_refute_what_marginals_propose(tmp_path: Path) -> None:
    """Four elements differ so that no sum and hardly a norm of a row or column does."""
    whole = np.ones(SHAPE, np.float32) + np.eye(*SHAPE, dtype=np.float32)
    other = whole.copy()
    other[:2, 100:102] += np.array([[0.5, -0.5], [-0.5, 0.5]], np.float32)
    a = stored(tmp_path, "a", [{"x": part} for part in np.split(other, 2)])
    b = stored(tmp_path, "b", [{"x": whole}])
    (row,) = compare(a, b, keep_equal=True).tensors
    assert row.held is not None
    assert "by marginals" not in row.held.explanation
    assert row.verdict is Verdict.DIFFERENT
    assert row.held.placement == "shard 0"


def test_marginals_answer_where_tensors_are_gone(tmp_path: Path) -> None:
    two, one = stored(tmp_path, "two", RANKS), stored(tmp_path, "one", [WHOLE])
    objects = open_objects(StoreAddress(str(two)))
    for rank in (0, 1):
        committed = commit.read(objects, StepKey(rank, 0))
        assert committed is not None
        commit.drop_tensors(objects, committed, WithoutTensors("2026-01-02T03:04:05+00:00", "gc", "old"))
    answer = compare(two, one, keep_equal=True, ignore_unmatched=True)
    by_marginals = {name: (how, "by marginals") for name, how in HELD.items()}
    expected = by_marginals | {"same": ("replicated", "certain")}
    assert placements(answer) == expected
    rows = {row.name_a.split(".")[2]: row for row in answer.tensors}
    assert (rows["rows"].verdict, rows["rows"].basis) == (Verdict.CLOSE, "marginals")
    assert (rows["same"].verdict, rows["same"].basis) == (Verdict.EQUAL, "digest")
    assert "elements were removed from the store" in rows["sum"].reason
    alone = compare(f"{two}@0", f"{one}@0", ignore_unmatched=True)
    assert any(row.basis == "statistics" for row in alone.tensors)


# The tensors of all ranks of a step as one list, whatever numbers ranks give.


ONES, ZEROS = np.ones((2, 2), np.float32), np.zeros((2, 2), np.float32)


def held(root: Path, *ranks: Dump, mesh: str = "") -> HeldTensors:
    source = open_source(Selection(str(write(root, [list(ranks)]))), layout=LAYOUT)
    places = {rank: Mesh.parse(mesh).coordinates(rank) for rank in range(len(ranks))} if mesh else {}
    return hold_together({key.rank: source.load(key) for key in source.keys}, places)


def in_step(root: Path, *ranks: Dump) -> dict[int, StepTensors]:
    """Return a step of ranks whose tensors have names such as `Parameter embed`, or `Embedding embed 1`."""

    def key(words: list[str]) -> TensorKey:
        return TensorKey("", "", words[0], words[1], "output", 0, occurrence=int(words[2]))

    source = open_source(Selection(str(write(root, [list(ranks)]))), layout=LAYOUT)
    steps = {}
    for step in map(source.load, source.keys):
        names = [own.op_name.removeprefix(".") for own in step.keys]
        digests = [digest(ranks[step.key.rank][name].tobytes()) for name in names]
        steps[step.key.rank] = replace(
            step,
            keys=[key([*name.split(" "), "0"]) for name in names],
            digests=np.frombuffer(b"".join(digests), np.uint8).reshape(len(names), -1),
        )
    return steps


TIED = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_copies_of_a_tied_weight_have_one_name(tmp_path: Path) -> None:
    stages: tuple[Dump, Dump] = (
        {"Parameter embed.weight": TIED, "Gradient embed.weight": TIED},
        {"Parameter head.weight": TIED, "Gradient head.weight": -TIED, "Linear head": TIED},
    )
    whole = in_step(tmp_path / "b", stages[0])
    ranks = with_tied_weights(in_step(tmp_path / "a", *stages), whole)
    names = {(key.op_type, key.op_name) for key in ranks[1].keys}
    assert names == {("Parameter", "embed.weight"), ("Gradient", "embed.weight"), ("Linear", "head")}


@pytest.mark.parametrize(
    ("head", "others"),
    [
        (TIED + 1, {}),  # not its bytes
        (TIED, {"Parameter head.weight": TIED}),  # known by this name
        (TIED, {"Parameter up.weight": TIED}),  # the bytes of two
    ],
)
def test_other_parameters_keep_their_names(head: Array, others: Dump, tmp_path: Path) -> None:
    first: Dump = {"Parameter embed.weight": TIED, **others}
    ranks = in_step(tmp_path / "a", first, {"Parameter head.weight": head})
    assert {key.op_name for key in with_tied_weights(ranks, in_step(tmp_path / "b", first))[1].keys} == {
        "head.weight"
    }


@pytest.mark.parametrize(
    ("calls_of_ranks", "is_other"),
    [
        ([[[0], [1]], [[2], [3]]], True),  # each replica cuts its own share
        ([[[0], [2]], [[1], [3]]], False),
        ([[[0], [1]], [[2], [4]]], False),  # other samples
        ([[[0, 1], [2, 3]]], False),
    ],
)
def test_micro_batches_of_other_samples_are_known_by_their_tokens(
    calls_of_ranks: list[list[list[int]]], *, is_other: bool, tmp_path: Path
) -> None:
    def tokens(calls: list[list[int]]) -> Dump:
        return {
            f"Embedding embed {number}": np.repeat(np.array(samples)[:, None], 5, axis=1)
            for number, samples in enumerate(calls)
        }

    ranks = in_step(tmp_path / "a", *map(tokens, calls_of_ranks))
    whole = in_step(tmp_path / "b", tokens([[0, 1], [2, 3]]))
    assert are_cut_into_other_calls(ranks, whole) is is_other
    assert are_cut_into_other_calls(whole, ranks) is is_other


def test_without_activations_parameters_and_gradients_are_left(tmp_path: Path) -> None:
    ranks = in_step(
        tmp_path, {"Parameter a": ONES, "Linear a": ONES, "Gradient a": ONES, "Gradient a.output": ONES}
    )
    kept = hold_together(ranks, {}, without_activations=True)
    assert [(key.op_type, key.op_name) for key in kept.keys] == [("Parameter", "a"), ("Gradient", "a")]


def test_each_tensor_is_there_once_with_its_holders(tmp_path: Path) -> None:
    both = held(tmp_path, {"a": ONES, "b": ONES, "d": ONES}, {"a": ONES, "c": ZEROS, "d": ONES})
    names = [key.op_name.removeprefix(".") for key in both.keys]
    assert names == ["a", "c", "b", "d"]  # what only rank 1 has comes behind what it executed before
    assert [[holder.rank for holder in holders] for holders in both.holders] == [[0, 1], [1], [0], [0, 1]]
    assert both.as_step().shapes == [(2, 2)] * 4
    assert (both.dtype(1), both.shapes(0), both.is_dumped(3)) == ("float32", ((2, 2), (2, 2)), True)
    assert both.told(0) == {}


def test_places_on_the_mesh_make_a_grid(tmp_path: Path) -> None:
    ranks: list[Dump] = [{"a": ONES} for _ in range(4)]
    known = held(tmp_path / "known", *ranks, mesh="dp=2,tp=2").pieces(0)
    assert known.grid is not None
    assert known.grid.names == ("dp", "tp")
    assert held(tmp_path / "unknown", *ranks).pieces(0).grid is None


def test_a_reduction_that_was_not_awaited_is_told_by_the_file(tmp_path: Path) -> None:
    unpack("pt/parallel-layouts", tmp_path)
    source = open_source(Selection(str(tmp_path / "parallel-layouts/sglang-tp2")))
    both = hold_together({key.rank: source.load(key) for key in source.keys if key.step == 0}, {})
    awaited = {both.keys[number].op_name for number in range(len(both.keys)) if both.is_awaited(number)}
    assert {"embed_output", "mlp_output.layer_id=0"} <= awaited
    assert "attn_q.layer_id=0" not in awaited


HELD_RNG = np.random.default_rng(9)
EXPERTS = [HELD_RNG.normal(size=(3, 4)).astype(np.float32) for _ in range(4)]


def named(numbers: range, first: int = 0) -> Dump:
    names = [f"layers.0.experts.{number - first}.weight" for number in numbers]
    return dict(zip(names, (EXPERTS[number] for number in numbers), strict=True))


def test_experts_are_found_by_their_values(tmp_path: Path) -> None:
    write(tmp_path / "b", [[named(range(4))]])
    write(tmp_path / "a", [[named(range(2, 4), 2), named(range(2))]])
    found = compare(tmp_path / "a", tmp_path / "b", layout=LAYOUT, keep_equal=True)
    assert found.verdict == "equal"
    assert len(found.tensors) == 4
    assert {row.held.ranks_a for row in found.tensors if row.held} == {(0,), (1,)}
    assert any("rank 0 has experts.2 and following" in note for note in found.notes)


def test_names_stay_where_values_do_not_show_it(tmp_path: Path) -> None:
    write(tmp_path / "b", [[named(range(4))]])
    other = {name: values + 1 for name, values in named(range(2)).items()}
    write(tmp_path / "a", [[other, other]])
    found = compare(tmp_path / "a", tmp_path / "b", layout=LAYOUT)
    assert not any("from 0 each" in note for note in found.notes)
    assert found.verdict == "different"


def test_other_numbers_of_a_name_stay() -> None:
    key = TensorKey("", "", "Module", "layers.1.experts.0.fc2", "output", 0)
    assert renumbered(key, {"experts.": 4}).op_name == "layers.1.experts.4.fc2"
    assert renumbered(key, {"layers.": 2}).op_name == "layers.3.experts.0.fc2"


# Stores and dumps as sides of a comparison, as they are typed.


@pytest.mark.parametrize(
    "text", ["r@x", "r@1,2,3", "r@-1", "r@rank=1,rank=2", "r@1,rank=2", "r@", "r@99999999999999999999"]
)
def test_what_is_no_rank_and_step_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a rank and step"):
        parse_selection(text)


def test_layouts_of_accelerators_are_compared_in_the_order_of_the_axes(
    dumps: DumpLibrary, tmp_path: Path
) -> None:
    dump = dumps["cann-bin-synthetic"] / "torchair"
    ingest_directly(dump, tmp_path / "host.zarr")
    ingest_directly(dump, tmp_path / "device.zarr", Grid(keep_device_layout=True))
    of_host, of_device, of_dump = tmp_path / "host.zarr", tmp_path / "device.zarr", dump
    for a, b in ((of_host, of_device), (of_device, of_host), (of_host, of_dump), (of_dump, of_device)):
        found = compare(a, b, include_partial=True)
        assert set(found.counts) <= {Verdict.EQUAL}, [tensor.reason for tensor in found.tensors]


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("none.zarr", "none.zarr", "does not exist"),
        ("long" * 2000 + "@0", "{store}", "does not exist"),
        ("run\0.zarr@0", "{store}", "does not exist"),
        (__file__, "{store}", "is a file"),
        ("{store}@9", "{store}", "no rank 9"),
        ("{store}@0,9", "{store}", "no step 9"),
        ("{store}@0,1", "{store}@1,9", "no step 9"),
        ("{dump}@7", "{store}", "does not have this rank and step"),
    ],
)
def test_what_is_not_there_is_a_users_mistake(
    nan_log: str, dumps: DumpLibrary, a: str, b: str, said: str
) -> None:
    a, b = (side.format(store=nan_log, dump=dumps["nan-log-2rank"]) for side in (a, b))
    with pytest.raises(UsageError, match=said):
        compare(a, b)


def test_a_store_that_has_lost_its_root_is_no_dump(nan_log: Path, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    shutil.copytree(nan_log, store)
    (store / "zarr.json").unlink()
    with pytest.raises(DamagedStore, match=r"its zarr\.json is missing"):
        compare(f"{store}@0", f"{store}@1")


def test_operands_lead_to_the_bytes_that_the_index_has_digests_of(nan_log: str) -> None:
    store = open_store(nan_log)
    tensors = load_step(store, store.step(0, 1))
    operands = [tensors.operand(number) for number in range(len(tensors.keys))]
    payloads = read_whole(operands)
    assert [digest(payload) for payload in payloads if isinstance(payload, bytes | memoryview)] == [
        row.tobytes() for row in tensors.digests
    ]
    assert tensors.dumped.all()
    assert not tensors.removed


NAME = TensorName("Net", "0", "Mul", "m", "input", 0)
FILE = SourceFile("a.npy", 100, 1)


def entry(name: TensorName = NAME, header: TensorHeader | None = None) -> Entry:
    return Entry(FILE, RowKind.TENSOR, name, header)


def test_names_that_occur_twice_are_copies() -> None:
    keys = keys_of([entry(), entry(NAME._replace(slot=1)), entry(), entry(NAME._replace(occurrence=1))])
    assert [(key.slot, key.occurrence, key.copy) for key in keys] == [
        (0, 0, 0),
        (1, 0, 0),
        (0, 0, 1),
        (0, 1, 0),
    ]
    assert len(set(keys)) == 4
