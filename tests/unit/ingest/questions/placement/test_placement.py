"""How the ranks of one run hold its tensors, without a reference."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingest
from ingest.identities.difference import Level
from ingest.questions.placement.agree import Agreements, kind_of, kinds_of, placement_text
from ingest.questions.placement.decide import (
    Certainty,
    Decision,
    contradicts,
    decide,
    describe,
    explain_difference,
    fit_limit,
    settled_by,
)
from ingest.questions.placement.layout_answer import LayoutFinding, PlacedKind, RunLayout
from ingest.questions.placement.layout_map import load_layout_map
from ingest.questions.placement.replicas import ReplicaCounts
from ingest.questions.placement.slot_kinds import SlotKind, slot_kind_of
from ingest.reader.text import MAX_ROWS
from ingest.store_gc.plan import GcPolicy
from tests.damages import only
from tests.gc_stores import age
from tests.in_memory import InMemory, Values, search_in
from tests.sharded_net import LAYOUT, Dump, Lay, layout_of, write
from tests.stores import MadeDump, ingest_directly, ingest_statistics
from tests.stores import Values as MadeValues
from workers.arrays.sharded.placement import MeshGrid
from workers.arrays.sharded.placement_search import Pieces, search
from workers.arrays.statistics import FIELDS
from workers.errors import DamagedStore, UsageError
from workers.store.consolidated.blocks import Block, TensorAxis, TensorKey


def placements(layout: RunLayout) -> dict[str, str]:
    return {
        kind.name.removeprefix("Module..").removesuffix(".output.0"): kind.placement for kind in layout.kinds
    }


def test_replicas_sums_and_gathered_shards_are_told_apart(lay: Lay) -> None:
    layout = lay(2, 2)
    shown = placements(layout)
    assert layout.findings == ()
    assert shown["param.norm.weight"] == "replicated"
    assert shown["embed"] == "replicated in 0-1; 2-3"
    assert layout.replicas == ((0, 2), (1, 3))
    whole = placements(lay(2, 1))
    assert whole["layers.0.proj.partial"] == "partial sum"
    assert whole["layers.0.qkv"] == "each rank its own"
    assert layout.to_dict()["kinds"][0]["ranks"] == [0, 1, 2, 3]
    assert "<table" in layout._repr_html_()


@pytest.mark.parametrize(
    ("bug", "tp", "dp", "kind", "name"),
    [
        ("BUG a gradient is not reduced", 1, 2, "missing reduction", "grad.param.layers.2.fc2.weight"),
    ],
)
def test_mistakes_are_found_without_a_reference(
    lay: Lay, bug: str, tp: int, *, dp: int, kind: str, name: str
) -> None:
    findings = lay(tp, dp, bug).findings
    assert (kind, f"Module..{name}.output.0") in [(found.kind, found.name) for found in findings]


def test_a_single_rank_has_no_layout(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a layout takes several ranks"):
        layout_of(tmp_path, [[{"x": np.ones(3, np.float32)}]])


def test_steps_of_single_ranks_have_no_layout(made: MadeDump, store: Path) -> None:
    """A partial step is not damaged."""
    for rank in range(2):
        made.add(np.ones(3, np.float32), step=rank, rank=rank)
    ingest_directly(made.root, store)
    with pytest.raises(UsageError, match="no step has tensors on two ranks\n"):
        ingest.layout(ingest.open_store(store))
    made.add(b"no npy", step=1)
    made.add(np.ones(3, np.float32), step=1)
    ingest_directly(made.root, store)
    with pytest.raises(UsageError, match="rank 0 step 1: partial"):
        ingest.layout(ingest.open_store(store))
    shutil.rmtree(only(store, "rank_1/step_1/*/index"))
    with pytest.raises(DamagedStore, match="rank 1 step 1: damaged"):
        ingest.layout(ingest.open_store(store), include_partial=True)


def test_statistics_alone_tell_neither_a_layout_nor_a_mistake(tmp_path: Path) -> None:
    """A counter, which must be the same on all ranks, and tensors that may or may not be."""
    names = ("Parameter.weight", "Gradient.weight", "Parameter.global_step")
    store = ingest_statistics(tmp_path, [dict.fromkeys(names, 3.0), dict.fromkeys(names, 4.0)])
    layout = ingest.layout(ingest.open_store(store))
    known = {(kind.placement, kind.why) for kind in layout.kinds}
    assert known == {("?", "bytes are not known: only statistics were dumped")}
    assert (len(layout.kinds), layout.findings, layout.replicas) == (3, (), ())


def test_marginals_tell_it_when_gc_has_removed_the_elements(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    whole, total, own = (rng.standard_normal((2, 160, 200)).astype(np.float32) for _ in range(3))
    ranks: list[Dump] = [
        {
            "shard": np.split(whole[0], 2)[rank],
            "gathered": whole[0],
            "partial": total[rank],
            "reduced": total.sum(axis=0),
            "own": own[rank],
        }
        for rank in range(2)
    ]
    url = str(tmp_path / "run.zarr")
    ingest_directly(write(tmp_path / "dump", [ranks, ranks]), url, layout=LAYOUT, sketches=True)
    before = ingest.layout(ingest.open_store(url), 0)
    age(tmp_path / "run.zarr")
    plan = ingest.plan_gc(url, GcPolicy(tensors_around_anomalies=0))
    assert ingest.apply_gc(url, plan).objects
    after = ingest.layout(ingest.open_store(url), 0)
    shown = placements(after)
    assert shown == placements(before)
    assert (shown["shard"], shown["partial"]) == ("shard 0", "partial sum")
    assert (before.removed, after.removed) == (0, 1)
    known = {kind.name.split(".")[2]: kind.why for kind in after.kinds}
    assert known["shard"].endswith("gathered.output.0, by marginals: estimated")
    assert known["own"] == "bytes differ; its elements were removed"


@pytest.mark.usefixtures("torch")
def test_a_pass_that_trains_nothing_is_left_out_and_not_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a stage of a pipeline that runs once to see the shapes."""
    import torch

    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        with ingest.record(model, tmp_path / "dump", what="tensors", advance="manual"):
            shapes = torch.full((3, 4), rank + 0.5, requires_grad=True)
            torch.autograd.grad(model(shapes).sum(), shapes)
            model(torch.ones(3, 4)).sum().backward()
    ingest_directly(tmp_path / "dump", tmp_path / "run.zarr")
    assert ingest.layout(ingest.open_store(tmp_path / "run.zarr")).findings == ()


def test_a_sum_that_is_not_made_any_more_is_a_missing_reduction(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two groups of two ranks, each with a batch of its own: no two ranks hold all outputs alike."""
    torch.manual_seed(0)
    weight = torch.randn(12, 16)

    class Row(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, part: int) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(weight[:, 8 * part : 8 * part + 8].clone())

        def forward(self, x: Any) -> Any:
            return x @ self.weight.T if self.total is None else self.total

    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        net = torch.nn.Sequential(Row(rank % 2))
        torch.manual_seed(rank // 2)
        with ingest.record(net, tmp_path / "dump", what="tensors"):
            for is_reduced in (True, True, False):
                whole = torch.randn(6, 16)
                net[0].total = whole @ weight.T if is_reduced else None
                net(whole[:, 8 * (rank % 2) : 8 * (rank % 2) + 8])
    ingest_directly(tmp_path / "dump", tmp_path / "run.zarr")
    (finding,) = ingest.layout(ingest.open_store(tmp_path / "run.zarr", mesh="dp=2,tp=2")).findings
    assert (finding.kind, finding.step, finding.name) == ("missing reduction", 2, "Module.Row.0.output.0")
    assert "as it was in an earlier step over 2" in finding.text


# Tensors of one kind are held alike.


AGREE_RNG = np.random.default_rng(6)
AGREED = AGREE_RNG.normal(size=(6, 6)).astype(np.float32)
AGREED_NOISE = AGREE_RNG.normal(size=(6, 6)).astype(np.float32)


def key(name: str, op_type: str = "Module") -> TensorKey:
    return TensorKey("", "", op_type, name, "output", 0)


def decided_alike(*parts: Values) -> Decision:
    return decide(search_in(list(parts), [AGREED]), ("float32", "float32"))


@pytest.mark.parametrize(
    ("name", "other", "alike"),
    [
        ("layers.0.fc1", "layers.11.fc1", True),
        ("attn_q.layer_id=0", "attn_q.layer_id=3", True),
        ("net-MatMul-op3", "net-MatMul-op17", True),
        ("layers.0.fc1", "layers.0.fc2", False),
    ],
)
def test_numbers_of_layers_do_not_matter_and_those_in_words_do(name: str, other: str, alike: bool) -> None:
    assert (kind_of(key(name), 2) == kind_of(key(other), 2)) == alike
    assert kind_of(key(name), 2) != kind_of(key(name), 3)


def test_what_is_open_is_settled_by_others_of_its_kind() -> None:
    agreements, kind = Agreements(), kind_of(key("a.0"), 2)
    unknown = decided_alike(AGREED_NOISE, AGREED_NOISE.T)
    assert placement_text(unknown) == "?"
    assert agreements.settle([kind], unknown) is unknown
    agreements.learn([kind], decided_alike(AGREED - AGREED_NOISE, AGREED_NOISE))
    settled = agreements.settle([kind], unknown)
    assert (settled.certainty, placement_text(settled)) == (Certainty.AGREED, "partial sum")
    agreements.learn([kind], decided_alike(AGREED, AGREED))
    assert agreements.settle([kind], unknown) is unknown  # the kind is not unanimous any more


def test_one_among_many_is_odd() -> None:
    agreements, kind = Agreements(), kind_of(key("a.0"), 2)
    whole, parts = decided_alike(AGREED, AGREED), decided_alike(AGREED - AGREED_NOISE, AGREED_NOISE)
    for decision in (whole, whole, parts):
        agreements.learn([kind], decision)
    assert agreements.odd(kind, parts).startswith("replicated")
    assert agreements.odd(kind, whole) == ""


def test_gradients_are_held_as_their_parameters() -> None:
    kinds = kinds_of(key("a.weight", "Gradient"), 1)
    assert kinds[1] == kind_of(key("a.weight", "Parameter"), 1)


# Which way is taken, and how certain that is.


RNG = np.random.default_rng(5)
WHOLE = RNG.normal(size=(6, 4)).astype(np.float32)
NOISE = RNG.normal(size=WHOLE.shape).astype(np.float32)


def decided(a: list[Values], b: Values) -> tuple[str, Certainty]:
    decision = decide(search_in(a, [b]), ("float32", "float32"))
    return describe(decision.way) if decision.way else "?", decision.certainty


@pytest.mark.parametrize(
    ("a", "expected"),
    [
        ([WHOLE, WHOLE], ("replicated", Certainty.CERTAIN)),
        ([WHOLE, WHOLE * np.float32(1 + 1e-6)], ("replicated", Certainty.CERTAIN)),
        ([WHOLE - NOISE, NOISE], ("partial sum", Certainty.CERTAIN)),
        ([WHOLE * 2, WHOLE * 2], ("replicated", Certainty.CERTAIN)),  # but for a factor
        (list(np.split(NOISE, 2)), ("shard 0", Certainty.BY_SHAPE)),
        ([NOISE, NOISE], ("replicated", Certainty.BY_SHAPE)),
        ([NOISE, NOISE[::-1]], ("?", Certainty.OPEN)),
        ([WHOLE + NOISE / 10, WHOLE], ("replicated", Certainty.LIKELY)),
        ([np.ones((5, 5), np.float32)], ("?", Certainty.OPEN)),
    ],
)
def test_decisions(a: list[Values], expected: tuple[str, Certainty]) -> None:
    shown, certainty = decided(a, WHOLE)
    assert (shown, certainty) == expected or (certainty is Certainty.LIKELY is expected[1])


def test_partial_sums_that_do_not_quite_fit_are_no_mean() -> None:
    """A sum of pieces and their mean differ by a factor alone, so no factor tells the one from the other."""
    off = WHOLE + NOISE * np.float32(1.5e-3)
    half = RNG.normal(size=WHOLE.shape).astype(np.float32)
    assert decided([off - half, half], WHOLE) == ("partial sum", Certainty.LIKELY)


def test_of_ways_that_fit_equally_the_simplest_is_taken_and_the_others_are_named() -> None:
    zeros = np.zeros((4, 4), np.float32)
    halves = [zeros[:2, :2]] * 4
    decision = decide(search_in(halves, [zeros]), ("float32", "float32"))
    assert decision.certainty is Certainty.OPEN
    assert decision.also
    assert decision.fits
    assert "also fits" in decision.explanation


def test_narrow_types_may_be_farther_apart() -> None:
    assert fit_limit(["float32"]) < fit_limit(["bfloat16", "float32"]) <= 0.25
    assert fit_limit(["int64", "no type"]) == fit_limit(["float32"])


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([WHOLE * 2, WHOLE * 2], "it is 2 times B"),
        ([-WHOLE, -WHOLE], "it is -1 times B"),
        ([WHOLE, WHOLE], ""),
        ([WHOLE[3:], WHOLE[:3]], "piece 0 holds positions 3 to 5 of axis 0 instead of 0 to 2"),
        ([WHOLE[:3], WHOLE[:3]], "several ranks hold the same part"),
        ([WHOLE + 1, WHOLE + 1], ""),
    ],
)
def test_a_difference_is_explained_by_factors_and_parts(parts: list[Values], text: str) -> None:
    told = explain_difference(decide(search_in(parts, [WHOLE]), ("float32", "float32")))
    assert text in told
    assert bool(text) == bool(told)


def of_pieces(*parts: Values, grid: MeshGrid | None = None) -> Decision:
    shapes = tuple(part.shape for part in parts)
    pieces = Pieces(shapes, (0, 1)) if grid is None else Pieces(shapes, (0, 1), grid)
    found = search(pieces, Pieces((WHOLE.shape,), (0,)), [InMemory(p) for p in parts], [InMemory(WHOLE)])
    return decide(found, ("float32", "float32"))


GRID = MeshGrid(("tp",), np.arange(2))
UNLIKE = RNG.normal(size=WHOLE.shape).astype(np.float32)


def test_what_values_leave_open_the_dump_settles() -> None:
    open_one = of_pieces(NOISE, UNLIKE, grid=GRID)
    assert open_one.certainty is Certainty.OPEN
    settled = settled_by({"tp": "partial sum"}, open_one)
    assert settled.way is not None
    assert (str(settled.way.a), settled.certainty) == ("tp: partial sum", Certainty.TOLD)
    assert settled_by({}, open_one) is open_one
    assert settled_by({"tp": "shard 0"}, open_one) is open_one  # the shapes do not allow that


def test_what_values_show_for_certain_the_dump_does_not_overrule() -> None:
    certain = of_pieces(WHOLE - NOISE, NOISE, grid=GRID)
    assert settled_by({"tp": "replicated"}, certain) is certain
    assert contradicts({"tp": "replicated"}, certain)
    assert not contradicts({"tp": "partial sum"}, certain)
    assert not contradicts({"tp": "replicated"}, of_pieces(NOISE, UNLIKE, grid=GRID))


def test_on_a_mesh_without_names_kinds_decide() -> None:
    """As in files that tell how they are held, and not on which mesh: none of the ways fits the values."""
    half_reduced = [np.concatenate([WHOLE[:3], NOISE[3:]]), np.concatenate([NOISE[:3], WHOLE[3:] / 3])]
    settled = settled_by({"tp": "replicated"}, of_pieces(*half_reduced))
    assert settled.way is not None
    assert (str(settled.way.a), settled.certainty) == ("replicated", Certainty.TOLD)


# The layout of a run as plain values and in a notebook.


KIND = PlacedKind("<Mul>.m", (0, 1, 2), "shard 0", "told", 7)
FINDING = LayoutFinding(3, (0, 1), "Mul.m", "wrong shard", "ranks 0-1 hold the same bytes", Level.LIKELY, 2)
ANSWER = RunLayout("/run.zarr", (0, 1, 2), (3,), (KIND,), (FINDING,), ((0, 2), (1,)))


def test_an_answer_is_json() -> None:
    assert json.loads(json.dumps(ANSWER.to_dict())) == {
        "store": "/run.zarr",
        "ranks": [0, 1, 2],
        "steps": [3],
        "replicas": [[0, 2], [1]],
        "kinds": [
            {"name": "<Mul>.m", "ranks": [0, 1, 2], "placement": "shard 0", "why": "told", "tensors": 7}
        ],
        "findings": [
            {
                "step": 3,
                "ranks": [0, 1],
                "name": "Mul.m",
                "kind": "wrong shard",
                "text": "ranks 0-1 hold the same bytes",
                "level": "likely",
                "follows": 2,
                "cause": "wrong shard",
            }
        ],
        "removed": 0,
        "left_out": [],
    }


def test_a_notebook_shows_the_first_kinds_and_counts_all() -> None:
    many = RunLayout("/run.zarr", (0,), (3,), (KIND,) * (MAX_ROWS + 5), (FINDING,), ())
    shown = many._repr_html_()
    assert shown.count("&lt;Mul&gt;.m") == MAX_ROWS
    assert "5 more" in shown
    assert "1 finding: " in shown


# Files that say how ranks hold tensors.


UNLIKE_PARTS = np.random.default_rng(7).normal(size=(2, 6, 6)).astype(np.float32)
TEXT = """
placements:
  - {name: "a.*", a: "partial sum"}
  - {regex: 'b\\.[01]', a: replicated, b: whole}
  - {name: "c", a: "shard 1"}
"""


@pytest.mark.parametrize(
    ("name", "kind", "certainty"),
    [
        ("a.x", "partial sum", Certainty.MAPPED),
        ("b.1", "replicated", Certainty.MAPPED),
        ("c", None, Certainty.OPEN),
    ],
)
def test_the_first_pair_that_fits_counts(
    tmp_path: Path, name: str, kind: str | None, certainty: Certainty
) -> None:
    path = tmp_path / "map.yml"
    path.write_text(TEXT)
    open_one = decide(
        search_in([UNLIKE_PARTS[0], UNLIKE_PARTS[1]], [UNLIKE_PARTS[0].T]), ("float32", "float32")
    )
    mapped = load_layout_map(path).apply(name, open_one)
    assert (mapped.way.a.kind if mapped.way else None, mapped.certainty) == (kind, certainty)
    assert load_layout_map(path).apply("other", open_one) is open_one


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("placements:\n  - {name: x, a: sharded}\n", "is not a placement"),
        ("placements:\n  - {a: replicated}\n", "give either"),
        ("placements:\n  - {regex: '(', a: replicated}\n", r"map.yml:2: "),
        ("other: 1\n", "other"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "map.yml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        load_layout_map(path)


# States of optimizers that are of another step, or than those of replicas.


Change = Callable[[list[list[Dump]]], None]


def trained(ranks: int) -> list[list[Dump]]:
    """Return what replicas dump of three steps: parameters, two states of each, and a counter."""
    steps = []
    for step in range(3):
        rng = np.random.default_rng(step)
        dump: Dump = {"optimizer.step": np.array(step + 1, np.int64)}
        for name in ("fc1.weight", "fc2.weight"):
            dump[f"param.{name}"] = rng.normal(size=(4, 3)).astype(np.float32)
            dump[f"exp_avg.{name}"] = rng.normal(size=(4, 3)).astype(np.float32)
            dump[f"{name}.exp_avg_sq"] = rng.normal(size=(4, 3)).astype(np.float32)
        steps.append([dict(dump) for _ in range(ranks)])
    return steps


def found(root: Path, ranks: int, change: Change) -> list[LayoutFinding]:
    steps = trained(ranks)
    change(steps)
    write(root / "dump", steps)
    ingest_directly(root / "dump", root / "store", layout=LAYOUT)
    return list(ingest.layout(ingest.open_store(root / "store")).findings)


def test_healthy_states_are_not_reported(tmp_path: Path) -> None:
    assert found(tmp_path, 2, lambda _: None) == []


@pytest.mark.parametrize("name", ["exp_avg.fc1.weight", "fc1.weight.exp_avg_sq"])
def test_the_state_of_the_step_before_is_found(tmp_path: Path, name: str) -> None:
    def stale(steps: list[list[Dump]]) -> None:
        steps[2][1][name] = steps[1][1][name]

    (finding,) = [finding for finding in found(tmp_path, 3, stale) if "optimizer" in finding.kind]
    assert (finding.kind, finding.step, finding.ranks) == ("optimizer state out of step", 2, (1,))
    assert name in finding.name
    assert "rank 1 has that of step 1" in finding.text


def test_of_two_replicas_either_may_be_wrong(tmp_path: Path) -> None:
    def other(steps: list[list[Dump]]) -> None:
        for step in steps:
            step[1]["exp_avg.fc2.weight"] = step[1]["exp_avg.fc2.weight"] + 1

    (finding,) = [finding for finding in found(tmp_path, 2, other) if "optimizer" in finding.kind]
    assert (finding.step, finding.ranks, finding.follows) == (0, (0, 1), 2)
    assert "hold the same Module..param.fc2.weight.output.0" in finding.text


def test_a_counter_that_lags_is_found(tmp_path: Path) -> None:
    def lag(steps: list[list[Dump]]) -> None:
        steps[2][1]["optimizer.step"] = np.array(2, np.int64)

    (finding,) = found(tmp_path, 3, lag)
    assert (finding.ranks, finding.kind) == ((1,), "optimizer state out of step")
    assert "rank 1 has that of step 1" in finding.text


def test_states_that_are_cut_by_rank_are_right(tmp_path: Path) -> None:
    """ZeRO: each rank has a part of each state."""

    def cut(steps: list[list[Dump]]) -> None:
        for step in steps:
            for rank, dump in enumerate(step):
                for name in [name for name in dump if "exp_avg" in name]:
                    dump[name] = dump[name][2 * rank : 2 * rank + 2]

    assert [finding for finding in found(tmp_path, 2, cut) if "optimizer" in finding.kind] == []


# A bias that every rank adds before a reduction.


def test_a_bias_that_every_rank_adds_is_found(lay: Lay) -> None:
    def add_twice(ranks: list[Dump]) -> None:
        for dump in ranks:
            name = "layers.1.fc2"
            dump[name] = dump[name] + dump[f"param.{name}.bias"]

    (found,) = lay(2, 1, changed=add_twice).findings
    assert found.kind == "bias on every rank"
    assert "2 times Module..param.layers.1.fc2.bias.output.0" in found.text


_NUMBERS = [("real", "<f4"), ("whole", "<i4")]


@pytest.mark.parametrize(
    ("pieces", "output"),
    [
        ((np.zeros((0, 4), "f4"), np.zeros((0, 5), "f4")), np.zeros((0, 4), "f4")),
        ((np.full((2, 4), 2, "f4"), np.full((1, 4), 3, "f4")), np.ones((2, 4), "f4")),
        ((np.array(["a", "b"]), np.array(["c", "d"])), np.array(["e", "f"])),
        ((np.array([1j, 2]), np.array([1j, 4])), np.array([1j, 9])),
        ((np.zeros(2, _NUMBERS), np.ones(2, _NUMBERS)), np.ones(2, _NUMBERS)),
    ],
    ids=["empty", "uneven", "text", "complex", "structure"],
)
def test_what_cannot_be_summed_has_no_repeated_bias(
    tmp_path: Path, pieces: tuple[MadeValues, MadeValues], output: MadeValues
) -> None:
    bias = np.arange(1, 1 + output.shape[-1]).astype("c16" if output.dtype.kind == "c" else "f4")
    ranks: list[Dump] = [{"x.partial": piece, "y": output, "y.bias": bias} for piece in pieces]
    layout = layout_of(tmp_path, [ranks])
    assert layout.findings == ()
    assert [kind.placement for kind in layout.kinds][1:] == ["replicated", "replicated"]


# Which ranks hold the same parameters.


def counted(*parameters: tuple[str, int]) -> ReplicaCounts:
    """Count parameters, each given by a letter for what each rank holds, and its size."""
    ranks = tuple(range(len(parameters[0][0])))
    axis = TensorAxis(TensorKey("", "", "Parameter", f"p{n}", "output", 0) for n in range(len(parameters)))
    shape = len(ranks), len(parameters)
    digest = np.zeros((*shape, 16), np.uint8)
    statistics = np.zeros((*shape, len(FIELDS)))
    row = np.full(shape, -1, np.int32)
    for place, (letters, size) in enumerate(parameters):
        for rank, letter in enumerate(letters):
            if letter != "-":
                row[rank, place], digest[rank, place] = place, ord(letter)
        statistics[:, place, FIELDS.index("count")], statistics[:, place, FIELDS.index("max")] = size, 1
    counts = ReplicaCounts(ranks, axis)
    counts.visit(Block(0, ranks, row, statistics, digest))
    return counts


def test_norms_alone_make_no_replicas() -> None:
    """Two of three parameters are the same, and hardly any elements."""
    assert counted(("aaaa", 8), ("aaaa", 8), ("abab", 1000)).groups() == [(0, 2), (1, 3)]
    assert counted(("aa", 8), ("aa", 8), ("ab", 1000)).groups() == []


def test_a_replica_that_drifts_is_one() -> None:
    assert counted(("aaab", 10), ("aaaa", 100), ("aaaa", 100)).groups() == [(0, 1, 2, 3)]


def test_only_the_groups_of_a_mesh_are_taken() -> None:
    assert counted(("abab", 9)).grid() == [[0, 2], [1, 3]]
    assert counted(("aaaa", 9)).grid() == []
    assert counted(("abac", 9)).grid() == []
    assert counted(("aab-", 9)).grid() == []


# What replicas share, judged by names.


@pytest.mark.parametrize(
    ("op_type", "io", "kind"),
    [
        ("AllReduce", "output", SlotKind.COLLECTIVE),
        ("AllReduce", "input", SlotKind.OTHER),
        ("HcomAllReduce", "output", SlotKind.COLLECTIVE),
        ("hcom_all_reduce_", "output", SlotKind.COLLECTIVE),
        ("hcom_allReduce__428_1", "output", SlotKind.COLLECTIVE),
        ("allreduce", "output", SlotKind.COLLECTIVE),
        ("_c10d_functional.all_reduce", "output", SlotKind.COLLECTIVE),
        ("c10d::allgather_into_tensor_coalesced_", "output", SlotKind.COLLECTIVE),
        ("Distributed.all_gather_into_tensor", "output", SlotKind.COLLECTIVE),
        ("DistCommAllGatherIntoTensor", "output", SlotKind.COLLECTIVE),
        ("NcclBroadcast", "output", SlotKind.COLLECTIVE),
        ("Broadcast", "output", SlotKind.COLLECTIVE),
        ("BroadcastTo", "output", SlotKind.OTHER),
        ("BroadcastGradientArgs", "output", SlotKind.OTHER),
        ("DynamicBroadcastTo", "output", SlotKind.OTHER),
        ("ReduceScatter", "output", SlotKind.OTHER),
        ("AllToAll", "output", SlotKind.OTHER),
        ("AllGatherMatmul", "output", SlotKind.OTHER),
        ("ApplyMomentum", "input", SlotKind.OPTIMIZER),
        ("ApplyMomentum", "output", SlotKind.OPTIMIZER_OUTPUT),
        ("AdamWeightDecay", "input", SlotKind.OPTIMIZER),
        ("FusedCastAdamWeightDecay", "input", SlotKind.OPTIMIZER),
        ("SparseApplyFtrlV2", "input", SlotKind.OPTIMIZER),
        ("npu_apply_adam_w", "input", SlotKind.OPTIMIZER),
        ("AdaptiveAvgPool2D", "input", SlotKind.OTHER),
        ("Lambda", "input", SlotKind.OTHER),
        ("Parameter", "output", SlotKind.PARAMETER),
        ("Module.Linear", "parameters.weight", SlotKind.PARAMETER),
        ("Module.Linear", "parameters_grad.weight", SlotKind.OTHER),
    ],
)
def test_names_of_every_vendor_tell_what_replicas_share(op_type: str, io: str, kind: SlotKind) -> None:
    assert slot_kind_of(TensorKey("", "0", op_type, "op", io, 0)) is kind


@pytest.mark.parametrize(
    ("op_name", "kind"),
    [
        (".param.layers.1.fc1.weight", SlotKind.PARAMETER),
        ("parameters/embed", SlotKind.PARAMETER),
        ("exp_avg_sq.layers.1.fc1.weight", SlotKind.PARAMETER),
        ("param.layers.1.fc1.weight.grad", SlotKind.OTHER),
        ("layers.1.param", SlotKind.OTHER),
        ("paramount.layer", SlotKind.OTHER),
    ],
)
def test_parameters_and_states_are_told_by_how_their_names_begin(op_name: str, kind: SlotKind) -> None:
    assert slot_kind_of(TensorKey("", "0", "Module", op_name, "output", 0)) is kind
