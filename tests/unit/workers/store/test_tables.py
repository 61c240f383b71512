"""The tables of a leaf, and the roles of tensors in them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import VLenUTF8, Zstd

from bench.steps import make_tables
from ingest.api import open_store, repair
from ingest.dispatch.runners import in_threads
from ingest.wiring.consolidation import sketch_steps
from tests.damages import only
from tests.stores import MadeDump, ingest_directly, plan_all, tensor_name
from workers.arrays import statistics
from workers.errors import DamagedStore, DumpError
from workers.model import StepKey
from workers.rules.schema import load_rules
from workers.store import commit, tables, untrusted
from workers.store.commit import Commit
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve
from workers.store.packed.shards import without_crc32c
from workers.store.roles import Hint, hint_of, hints_of, roles_of
from workers.store.tables import (
    LABELS,
    NUMBERS,
    Tables,
    attributes_of,
    checksums_of,
    disagreeing,
    record_of,
    with_disagreement,
)
from workers.tasks import publish as publishing
from workers.tasks.convert import convert
from workers.tasks.publish import build_tables, publish

# The tables of a leaf come back as they were, or not at all.


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def made(labels: list[str], shapes: list[tuple[int, ...]]) -> Tables:
    rows = len(shapes)
    rng = np.random.default_rng(rows)
    cycle = (labels * (rows * len(LABELS)))[: rows * len(LABELS)]
    return Tables(
        labels=np.array(cycle, object).reshape(rows, len(LABELS)),
        numbers=rng.integers(-(2**63), 2**63 - 1, (rows, len(NUMBERS))),
        shape=tables.shape_table(shapes),
        digest=rng.integers(0, 256, (rows, 16)).astype(np.uint8),
        statistics=rng.normal(size=(rows, len(statistics.FIELDS))),
    )


@given(
    st.lists(texts, min_size=1, max_size=20),
    st.lists(st.lists(st.integers(0, 2**62), max_size=6).map(tuple), min_size=1, max_size=5),
)
def test_tables_come_back(labels: list[str], shapes: list[tuple[int, ...]]) -> None:
    table = made(labels, shapes)
    decoded = tables.decode(*tables.encode(table), "here")
    for name in ("labels", "numbers", "shape", "digest", "statistics"):
        np.testing.assert_array_equal(getattr(decoded, name), getattr(table, name), strict=True)


def test_axes_beyond_the_last_are_marked() -> None:
    assert tables.shape_table([(), (2, 0, 3)]).tolist() == [[-1, -1, -1], [2, 0, 3]]
    assert tables.shape_table([()]).shape == (1, 1)


def flip(data: bytes) -> bytes:
    return data[:10] + bytes([data[10] ^ 1]) + data[11:]


@pytest.mark.parametrize("key", tables.chunk_keys())
@pytest.mark.parametrize("damage", [flip, lambda data: data[:-5], lambda _: b"", lambda data: data + b"\0"])
def test_damaged_table_is_named(key: str, damage: Callable[[bytes], bytes]) -> None:
    """A wrong index would return the bytes of another tensor."""
    documents, chunks = tables.encode(made(["a"], [(1,), (2,)]))
    chunks[key] = damage(chunks[key])
    with pytest.raises(DamagedStore, match=f"here: {key.removesuffix('/c/0/0')}"):
        tables.decode(documents, chunks, "here")


@pytest.mark.parametrize("key", tables.chunk_keys())
def test_missing_table_is_named(key: str) -> None:
    documents, chunks = tables.encode(made(["a"], [(1,)]))
    del chunks[key]
    with pytest.raises(DamagedStore, match=f"here: {key.removesuffix('/c/0/0')} is missing"):
        tables.decode(documents, chunks, "here")


def test_rows_that_disagree_are_known_or_found_in_their_text() -> None:
    """Stores have no column for it."""
    table = made([""], [(1,), (2,), (3,)])
    table.labels[1, LABELS.index("problem")] = with_disagreement("", "s.csv", ["max"])
    assert table.disagreeing.tolist() == [False, True, False]
    known = replace(table, known_disagreeing=np.array([True, False, False]))
    assert known.disagreeing.tolist() == [True, False, False]
    assert tables.decode(*tables.encode(known), "here").disagreeing.tolist() == [False, True, False]


def possible() -> Tables:
    """Return tables that pass every check: a tensor of four elements at the end of its array."""
    table = made([""], [(2, 2)])
    table.numbers[:] = 0
    table.labels[0, LABELS.index("array")] = "tensors/int8"
    for name, value in (("size", 4), ("offset", 6), ("ndim", 2)):
        table.numbers[0, NUMBERS.index(name)] = value
    return table


DOCUMENTS = {"tensors/int8": {"shape": [10]}}


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"size": -1}, "numbers has a negative size"),
        ({"source_offset": -1}, "numbers has a negative source_offset"),
        ({"offset": -2}, "impossible offset"),
        ({"ndim": 3}, "impossible offset or ndim"),
        ({"size": 5}, "elements beyond the end of 'tensors/int8'"),
        ({"offset": 2**62, "size": 2**62}, "elements beyond the end"),
    ],
)
def test_numbers_that_nobody_wrote_are_damage(columns: dict[str, int], what: str) -> None:
    """A reader takes memory for `size` elements, and reads them at `offset`."""
    table = possible()
    for name, value in columns.items():
        table.numbers[0, NUMBERS.index(name)] = value
    with pytest.raises(DamagedStore, match=f"here: index/.*{what}"):
        tables.check(table, DOCUMENTS, "here")


def test_other_values_that_nobody_wrote_are_damage() -> None:
    table = possible()
    table.shape[0, 1] = -1
    with pytest.raises(DamagedStore, match="negative length"):
        tables.check(table, DOCUMENTS, "here")
    table = possible()
    table.labels[0, LABELS.index("lead")] = "\u20ac"
    with pytest.raises(DamagedStore, match="not latin-1 in lead"):
        tables.check(table, DOCUMENTS, "here")
    with pytest.raises(DamagedStore, match="16 columns"):
        tables.check(replace(possible(), digest=np.zeros((1, 8), np.uint8)), DOCUMENTS, "here")


def test_a_step_that_is_kept_without_tensors_needs_no_arrays_of_them() -> None:
    tables.check(possible(), {}, "here", has_tensors=False)
    with pytest.raises(DamagedStore, match="beyond the end"):
        tables.check(possible(), {}, "here")


def test_the_text_is_that_of_earlier_versions() -> None:
    """Stores have it, and rules look for it there."""
    differences = ["max: 3 is reported, 2 computed", "nan_count: 1 is reported, 0 computed"]
    text = "s.csv disagrees: max: 3 is reported, 2 computed, nan_count: 1 is reported, 0 computed"
    assert with_disagreement("", "s.csv", differences) == text
    assert with_disagreement("torn", "s.csv", differences) == f"torn; {text}"


@given(st.lists(st.tuples(st.text(max_size=5), st.booleans()), max_size=8))
def test_labels_with_a_disagreement_are_recognised(rows: list[tuple[str, bool]]) -> None:
    labels = [with_disagreement(text, "s.csv", ["max"]) if differs else text for text, differs in rows]
    column = np.array([*labels, ""], object)
    assert disagreeing(column).tolist() == [*(differs for _, differs in rows), False]


def index_of(*rows: tuple[str, Any]) -> Tables:
    """Return an index of rows with these sources and records."""
    made = make_tables(StepKey(0, 0), [f"Type.name{row}.output.0" for row in range(len(rows))])
    for row, (source, record) in enumerate(rows):
        made.labels[row, LABELS.index("source")] = source
        text = record if isinstance(record, str) else json.dumps(record)
        made.labels[row, LABELS.index("record")] = text
    return made


def test_values_of_the_file_belong_to_each_of_its_tensors() -> None:
    made = index_of(("a.pt", {"file": {"lr": 0.1}}), ("a.pt", ""), ("b.pt", {"file": {"lr": 0.2}}))
    assert [attributes_of(made, row) for row in range(3)] == [{"lr": 0.1}, {"lr": 0.1}, {"lr": 0.2}]


def test_what_is_known_of_a_tensor_alone_is_its_own() -> None:
    made = index_of(
        ("a.pt", {"file": {"lr": 0.1}, "tensor": {"kind": "DTensor"}}), ("a.pt", {"path": ["x.y"]})
    )
    assert attributes_of(made, 0) == {"lr": 0.1, "tensor": {"kind": "DTensor"}}
    assert attributes_of(made, 1) == {"lr": 0.1}
    assert record_of(made, 1) == {"path": ["x.y"]}


@pytest.mark.parametrize("record", ["", "{", "[1]", "7", "[" * 100_000, {"file": [1]}])
def test_record_that_is_damaged_has_no_values(record: Any) -> None:
    assert attributes_of(index_of(("a.pt", record)), 0) == {}


def test_a_table_that_no_reader_would_decode_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "MAX_TABLE_NBYTES", 100)
    with pytest.raises(DumpError, match="a table of 800 bytes; the limit is 100"):
        tables.encode_table(np.zeros((10, 10)), "float64")


@pytest.mark.parametrize("rows", [0, 1, 31, 32, 33, 100])
def test_texts_are_encoded_as_by_the_codec(rows: int) -> None:
    """However many are encoded at a time, any reader of Zarr can decode them."""
    labels = np.array([f"{row} \x80 ä" * (row % 7) for row in range(3 * rows)], object).reshape(rows, 3)
    encoded = tables.encode_table(labels, "string")
    assert Zstd().decode(without_crc32c(encoded, "here")) == bytes(VLenUTF8().encode(labels.reshape(-1)))


# A table of another step or rank has a right checksum of its own, but is not the one that was committed.


KEY, OTHER = StepKey(0, 1), StepKey(0, 2)


@pytest.fixture
def filled(made: MadeDump) -> MadeDump:
    """Two steps of equal form, with findings, histograms, digests of blocks and marginals."""
    for step in (1, 2):
        values = np.tile(np.arange(1000, dtype=np.float32) * step, (300, 1))
        values[0, :step] = np.nan
        made.add(values, tensor_name(time=step), step=step)
    return made


@pytest.fixture
def objects(filled: MadeDump, store: Path) -> ObjectStore:
    ingest_directly(filled.root, store, rules=load_rules().enabled, sketches=True)
    return open_objects(resolve(str(store)))


def committed_in(objects: ObjectStore, key: StepKey = KEY) -> Commit:
    committed = commit.read(objects, key)
    assert committed is not None
    return committed


def stored_in(objects: ObjectStore) -> dict[str, int]:
    """Return what the tables of the step end with."""
    committed = committed_in(objects)
    keys = committed.record.checksums
    chunks = {key: objects.get(f"{committed.prefix}/{key}") for key in keys}
    return checksums_of({key: data for key, data in chunks.items() if data is not None})


def test_a_commit_lists_every_table(objects: ObjectStore) -> None:
    listed = committed_in(objects).record.checksums
    names = {key.partition("/c/")[0].split("/")[0] for key in listed}
    assert names == {
        *("index", "statistics", "findings"),
        *("histograms", "block_digests", "marginal_axes", "marginals"),
    }
    assert set(tables.chunk_keys()) <= listed.keys()
    assert stored_in(objects) == listed


@pytest.mark.usefixtures("objects")
@pytest.mark.parametrize(
    "table",
    [
        *("index/labels", "index/numbers", "index/digest", "statistics"),
        *("findings/*/numbers", "histograms", "block_digests", "marginals"),
    ],
)
def test_the_table_of_another_step_is_damage_and_is_mended(store: Path, table: str) -> None:
    path = only(store, f"{KEY.path}/*/{table}/c/0/0")
    before = path.read_bytes()
    path.write_bytes(only(store, f"{OTHER.path}/*/{table}/c/0/0").read_bytes())
    assert path.read_bytes() != before
    assert any("crc32c is another" in str(damage) for damage in open_store(store).verify())
    assert repair(store, apply=True).is_clean
    assert path.read_bytes() == before
    assert list(open_store(store).verify()) == []


def test_what_is_added_to_a_commit_is_listed(filled: MadeDump, store: Path) -> None:
    ingest_directly(filled.root, store)
    objects = open_objects(resolve(str(store)))
    assert set(committed_in(objects).record.checksums) == set(tables.chunk_keys())
    sketch_steps(open_store(store), in_threads)
    assert "histograms/c/0/0" in committed_in(objects).record.checksums
    assert stored_in(objects) == committed_in(objects).record.checksums


def test_tables_that_come_out_otherwise_elsewhere_are_those_of_the_commit(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of sums depends on the processor. Two workers that commit the same step must not mix."""
    plan = plan_all(filled.root, store)[0]
    receipts = [convert(job) for job in plan.jobs]
    objects = open_objects(resolve(str(store)))

    def build_there(*args: Any) -> Tables:
        built = build_tables(*args)
        built.statistics[:] = np.nextafter(built.statistics, np.inf)
        return built

    def commit_there(*_: object) -> None:
        monkeypatch.undo()
        with monkeypatch.context() as there:
            there.setattr(publishing, "build_tables", build_there)
            publish(plan, receipts)
        assert stored_in(objects) == committed_in(objects).record.checksums

    monkeypatch.setattr(commit, "_refuse_if_removed", commit_there)  # after the tables were written
    publish(plan, receipts)
    assert stored_in(objects) == committed_in(objects).record.checksums


# Roles of tensors: by names, by the definitions of optimizers, and by the order of execution.


NET = "Default_network-WithLossCell__backbone-Net_fc-Dense_"
LOSS = "Default_network-WithLossCell__loss_fn-SoftmaxCrossEntropyWithLogits_"


@pytest.mark.parametrize(
    ("op_type", "op_name", "io", "slot", "hint"),
    [
        ("MatMul", f"{NET}MatMul-op0", "output", 0, Hint.ACTIVATION),
        ("MatMul", f"{NET}MatMul-op0", "input", 1, Hint.NONE),
        ("MatMul", f"Gradients_{NET}Grad_MatMul_MatMul-op0", "output", 0, Hint.GRADIENT),
        ("MatMul", f"Gradients/{NET}gradMatMul-expand/MatMul-op3", "output", 0, Hint.GRADIENT),
        ("MatMul", "MatMul-op47", "output", 0, Hint.UNSCOPED),
        ("AllReduce", "Default_AllReduce-op3", "output", 0, Hint.UNSCOPED),
        ("BiasAddGrad", "BiasAddGrad-op48", "output", 0, Hint.GRADIENT),
        ("StopGradient", f"{NET}StopGradient-op0", "output", 0, Hint.ACTIVATION),
        ("ReduceMean", f"{LOSS}ReduceMean-op0", "output", 0, Hint.OF_LOSS),
        ("ReduceMean", "Default_net-SqrtLoss_ReduceMean-op0", "output", 0, Hint.OF_LOSS),
        ("NLLLoss", "NLLLoss-op4", "output", 0, Hint.UNSCOPED_LOSS),
        ("Mul", "Default_opt-Adam_Mul-op0", "output", 0, Hint.NONE),
        ("ApplyMomentum", "Default_optimizer-Momentum_ApplyMomentum-op0", "input", 0, Hint.WEIGHT),
        ("ApplyMomentum", "Default_optimizer-Momentum_ApplyMomentum-op0", "input", 3, Hint.GRADIENT),
        ("ApplyMomentum", "ApplyMomentum-op9", "input", 4, Hint.OPTIMIZER_STATE),
        ("ApplyMomentum", "ApplyMomentum-op9", "output", 0, Hint.NONE),
        ("Adam", "Default_opt-Adam_Adam-op0", "input", 9, Hint.GRADIENT),
        ("SGD", "Default_opt-SGD_SGD-op0", "input", 1, Hint.GRADIENT),
        ("Lamb", "Default_opt-Lamb_Lamb-op0", "input", 1, Hint.NONE),
        ("Parameter", "conv1_weight", "output", 0, Hint.WEIGHT),
        ("Parameter", "moments.fc.bias", "output", 0, Hint.OPTIMIZER_STATE),
        ("Parameter", "learning_rate", "output", 0, Hint.OPTIMIZER_STATE),
        ("Parameter", "inputs0", "output", 0, Hint.NONE),
        ("Functional.cross_entropy", "Functional.cross_entropy.0.forward", "output", 0, Hint.OF_LOSS),
        ("Module.Linear", "Module.fc.Linear.forward.0", "parameters.weight", -1, Hint.WEIGHT),
        ("Module.Linear", "Module.fc.Linear.backward.0", "input", 0, Hint.GRADIENT),
        ("Module.Linear", "Module.fc.Linear.parameters_grad", "parameters_grad.bias", -1, Hint.GRADIENT),
        ("Torch.relu", "Torch.relu.0.backward", "output", 0, Hint.GRADIENT),
    ],
)
def test_a_name_says_what_it_can(op_type: str, op_name: str, io: str, slot: int, hint: Hint) -> None:
    assert hint_of(op_type, op_name, io, slot) is hint


def roles(names: Sequence[tuple[str, str]], counts: Sequence[int], graphs: Sequence[str] = ()) -> list[str]:
    """Return the roles of outputs, in order of execution."""
    hints = hints_of((op_type, op_name, "output", 0) for op_type, op_name in names)
    graph_of = list(graphs) or ["0"] * len(names)
    return list(roles_of(hints, np.array(counts, np.float64), graph_of))


def test_the_loss_is_the_last_single_number_of_a_loss_function() -> None:
    names = [
        ("ReduceMean", "Default_net-LogLoss_ReduceMean-op0"),
        ("Neg", "Default_net-LogLoss_Neg-op0"),
        ("Neg", "Gradients_Default_net-LogLoss_Grad_Neg_Neg-op0"),
    ]
    assert roles(names, [1, 1, 1]) == ["activation", "loss", "gradient"]
    assert roles(names, [1, 4, 1]) == ["loss", "activation", "gradient"]


def test_without_a_loss_function_the_network_says_it() -> None:
    names = [
        ("ReduceMean", "Default_network-Attn_ReduceMean-op0"),
        ("Mul", "Expand__Muls_Mul-op0"),
        ("MatMul", "Gradients_Default_network-Attn_Grad_MatMul_MatMul-op0"),
        ("ReduceSum", "Default_network-Norm_ReduceSum-op0"),
    ]
    assert roles(names, [1, 1, 9, 1]) == ["loss", "gradient", "gradient", "activation"]
    assert roles(names[:1], [1]) == ["activation"], "nothing is trained"


def test_names_without_scope_are_backward_after_the_loss() -> None:
    names = [
        ("MatMul", "MatMul-op44"),
        ("SparseSoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits-op45"),
        ("SparseSoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits-op46"),
        ("MatMul", "MatMul-op47"),
    ]
    assert roles(names, [10, 1, 10, 10]) == ["activation", "loss", "gradient", "gradient"]
