"""Which tensor is which: by names, order, a mapping file, the model, or what operators do."""

import math
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from ingest.layouts.cann import REFERENCE
from ingest.questions.compare.alignment import (
    OperatorCall,
    Value,
    align,
    align_sequences,
    classes_of,
    kinds_of,
)
from ingest.questions.compare.mapping import NameMapping, load_mapping
from ingest.questions.compare.matching import (
    MatchedBy,
    TensorPair,
    by_model,
    guessed_names,
    mapping_text,
    match_tensors,
    unmatched,
    without_numbers,
)
from ingest.questions.compare.programs import with_uneven_functions
from ingest.questions.compare.result import GuessedName, Verdict, Why
from ingest.questions.compare.run import compare
from ingest.questions.compare.sources import StepTensors
from ingest.reader.context.ge_graph import ModelOutput
from tests.stores import DumpLibrary
from workers.arrays.statistics import FIELDS
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.consolidated.blocks import TensorKey

# Which tensor is which: exactly, in another graph, under other numbers, by a mapping file or the model.


def key(text: str, *, graph: str = "0", net: str = "Net") -> TensorKey:
    op_type, op_name, io, slot = text.split("|")
    return TensorKey(net, graph, op_type, op_name, io, int(slot))


def tensors(*keys: TensorKey, shapes: list[tuple[int, ...]] | None = None) -> StepTensors:
    n = len(keys)
    return StepTensors(
        StepKey(0, 0),
        list(keys),
        ["float32"] * n,
        shapes or [(2,)] * n,
        [()] * n,
        np.zeros((n, 16), np.uint8),
        np.full((n, len(FIELDS)), np.nan),
        np.ones(n, bool),
        np.zeros(n, np.int64),
        np.arange(n),
        SimpleNamespace(attributes=lambda _: {}, model_output=lambda _: None, full_name=lambda _: ""),
    )


def mapping(path: Path, text: str) -> NameMapping:
    path.write_text(text)
    return load_mapping(path)


def pairs(found: list[TensorPair]) -> list[tuple[int, int, MatchedBy]]:
    return [(pair.a, pair.b, pair.matched_by) for pair in found]


def conv(*numbers: int) -> list[TensorKey]:
    return [key(f"Conv2D|Default/net-Conv2D-op{number}|output|0") for number in numbers]


EXACT, ORDER = MatchedBy.EXACT, MatchedBy.ORDER
CONV = conv(0, 1, 2, 3)
LOOP = [CONV[0]._replace(occurrence=n) for n in range(3)]
OTHERS = [
    key("Conv2D|Default/other-Conv2D-op0|output|0"),
    key("Conv3D|Default/net-Conv2D-op0|output|0"),
    key("Conv2D|Default/net-Conv2D-op0|output|1"),
    key("Conv2D|Default/net-Conv2D-op0|input|0"),
]


@pytest.mark.parametrize(
    ("a", "b", "matched", "ambiguous"),
    [
        (CONV[:3], [CONV[2], CONV[0], CONV[1]], [(0, 1, EXACT), (1, 2, EXACT), (2, 0, EXACT)], False),
        (CONV[:1], [CONV[0]._replace(graph="7")], [(0, 0, MatchedBy.NAME)], False),
        (CONV[:2], conv(31, 12), [(0, 0, ORDER), (1, 1, ORDER)], False),
        (CONV[:3], conv(31, 32), [(0, 0, ORDER), (1, 1, ORDER)], True),
        # `op1` is the second one in A, and the first one in B.
        (CONV[:3], CONV[1:], [(0, 2, ORDER), (1, 0, EXACT), (2, 1, EXACT)], True),
        (LOOP, LOOP[:2], [(0, 0, EXACT), (1, 1, EXACT)], False),
        (CONV[:1], OTHERS, [], False),
    ],
    ids=[
        "the same key, whatever the order",
        "a graph of another number",
        "other numbers, in order of execution",
        "which one is missing is not known",
        "numbers were given anew",
        "runs of a loop are missing",
        "another scope, type or slot",
    ],
)
def test_which_tensor_is_which(
    a: list[TensorKey], b: list[TensorKey], matched: list[tuple[int, int, MatchedBy]], *, ambiguous: bool
) -> None:
    found = match_tensors(tensors(*a), tensors(*b))
    assert pairs(found) == matched
    assert {pair.ambiguous for pair in found} <= {ambiguous}
    assert unmatched(tensors(*a), tensors(*b), found) == (
        sorted(set(range(len(a))) - {pair.a for pair in found}),
        sorted(set(range(len(b))) - {pair.b for pair in found}),
    )


@pytest.mark.parametrize(
    ("of_a", "of_b", "matched"),
    [([(2,), (3,)], [(3,), (2,)], [(0, 1), (1, 0)]), ([(2,)], [(9,)], [(0, 0)])],
    ids=["tell apart what has one name", "of a single one are named"],
)
def test_shapes(
    of_a: list[tuple[int, ...]], of_b: list[tuple[int, ...]], matched: list[tuple[int, int]]
) -> None:
    a = tensors(*CONV[: len(of_a)], shapes=of_a)
    found = match_tensors(a, tensors(*conv(31, 32)[: len(of_b)], shapes=of_b))
    assert pairs(found) == [(*pair, ORDER) for pair in matched]


def test_another_order_that_digests_show_is_said() -> None:
    """As many on either side, but what is first here is second there."""
    a, b = tensors(*CONV[:3]), tensors(*conv(31, 32, 33))
    a.digests[:, 0], b.digests[:, 0] = (1, 2, 3), (2, 1, 3)
    assert [pair.ambiguous for pair in match_tensors(a, b)] == [True, True, False]


def test_of_functions_that_one_side_calls_more_often_numbers_tell_nothing() -> None:
    """The first of two minima is left out: the second one is that of the other side."""

    def program(*calls: tuple[str, str, str]) -> StepTensors:
        known = [
            (key(f"{function}|{io}|{slot}"), content)
            for function, read, written in calls
            for io, contents in (("input", read), ("output", written))
            for slot, content in enumerate(contents)
        ]
        made = tensors(*(each for each, _ in known))
        made.digests[:, 0] = [ord(content) for _, content in known]
        return made

    target, critic = "Module.Linear|target", "Module.Linear|critic"
    a = program(
        (target, "x", "ab"),
        ("Torch.min|min.0", "ab", "m"),
        ("Tensor.sub|sub.0", "m", "s"),
        (critic, "s", "cd"),
        ("Torch.min|min.1", "cd", "n"),
    )
    b = program(
        (target, "x", "ab"),
        ("Tensor.sub|sub.0", "a", "S"),
        (critic, "S", "CD"),
        ("Torch.min|min.0", "CD", "N"),
    )
    found = with_uneven_functions(a, b, match_tensors(a, b), SimpleNamespace())  # type: ignore[arg-type]
    named = {(a.names[pair.a], b.names[pair.b]) for pair in found if "min" in a.names[pair.a]}
    places = ("input.0", "input.1", "output.0")
    assert named == {(f"Torch.min.min.1.{place}", f"Torch.min.min.0.{place}") for place in places}
    assert len(found) == len(b.keys)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("Default_net-Mlp_MatMul-op12", "Default_net-Mlp_MatMul"),
        ("Default_net-Mlp_MatMul_12", "Default_net-Mlp_MatMul"),
        ("MatMul3", "MatMul"),
        ("Functional.linear.2.forward", "Functional.linear.forward"),
        ("Module.layers.0.Linear.forward.3", "Module.layers.0.Linear.forward"),
        ("Cell.fc.Dense.parameters_grad.0", "Cell.fc.Dense.parameters_grad"),
        ("", ""),
        ("12", ""),
    ],
)
def test_numbers_that_compilations_give_are_no_part_of_a_name(name: str, plain: str) -> None:
    assert without_numbers(name) == plain


def test_a_mapping_counts_before_equal_names(tmp_path: Path) -> None:
    names = mapping(tmp_path / "m.yaml", "pairs: [{a: 'X.a.output.0', b: 'X.b.output.0'}]")
    a, b = key("X|a|output|0"), key("X|b|output|0")
    found = match_tensors(tensors(a), tensors(a, b), names)
    assert pairs(found) == [(0, 1, MatchedBy.MAPPING)]


def test_a_mapping_that_leads_nowhere_changes_nothing(tmp_path: Path) -> None:
    names = mapping(tmp_path / "m.yaml", "pairs: [{a: '*', b: 'gone'}]")
    found = match_tensors(tensors(CONV[0]), tensors(CONV[0]), names)
    assert pairs(found) == [(0, 0, MatchedBy.EXACT)]


A = tensors(
    *map(
        key,
        (
            "MatMul|MatMul-op4|input|0",
            "MatMul|MatMul-op4|output|0",
            "Fused|Fused-op5|output|0",
            "Log|l*-op6|output|0",
        ),
    )
)
B = tensors(
    *map(
        key,
        (
            "MatMul|net_MatMul-op0|input|0",
            "MatMul|net_MatMul-op0|output|0",
            "ReLU|net_ReLU-op0|output|0",
            "Log|m?-op6|output|0",
        ),
    )
)
PAIRS = [TensorPair(n, n, MatchedBy.SCOPE) for n in range(4)]


def test_a_whole_operator_is_one_line() -> None:
    names = guessed_names(A, B, PAIRS)
    assert [(name.name_a, name.name_b) for name in names.values()] == [
        ("MatMul.MatMul-op4.*", "MatMul.net_MatMul-op0.*"),
        ("Fused.Fused-op5.output.0", "ReLU.net_ReLU-op0.output.0"),
        ("Log.l*-op6.output.0", "Log.m?-op6.output.0"),
    ]
    assert {name.how for name in names.values()} == {"scope"}


def test_a_part_of_an_operator_is_named_by_itself() -> None:
    (name,) = guessed_names(A, B, PAIRS[:1]).values()
    assert name.name_a == "MatMul.MatMul-op4.input.0"


def test_what_names_and_users_say_is_not_a_guess() -> None:
    certain = [TensorPair(0, 0, how) for how in (MatchedBy.EXACT, MatchedBy.MAPPING, MatchedBy.NAME)]
    assert guessed_names(A, B, certain) == {}


def test_the_file_is_accepted_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "map.yml"
    names = guessed_names(A, B, PAIRS)
    path.write_text(mapping_text(names.values(), {"a": "old.zarr", "b": "new\n- x.zarr"}))
    mapping = load_mapping(path)
    assert [mapping.name_in_b(key.name) for key in A.keys] == [key.name for key in B.keys]
    assert path.read_text().count("# guess: scope") == 3


def test_no_guesses_are_a_valid_file_too(tmp_path: Path) -> None:
    path = tmp_path / "map.yml"
    path.write_text(mapping_text([], {"a": "a", "b": "b"}))
    assert load_mapping(path).rules == ()


def test_odd_names_survive(tmp_path: Path) -> None:
    path = tmp_path / "map.yml"
    name = GuessedName('Log.a"b: {x}#\u00e9.output.0', "Log.\\1[y].output.0", "scope")
    path.write_text(mapping_text([name], {"a": "a", "b": "b"}))
    assert load_mapping(path).name_in_b(name.name_a) == name.name_b


def step(*tensors: tuple[str, str, str, int], of_model: dict[int, ModelOutput] | None = None) -> Any:
    """Return the tensors of a step by type, name, `io` and slot, and what a graph says of their numbers."""
    keys = [TensorKey("", "", op_type, name, io, slot, 0) for op_type, name, io, slot in tensors]
    operands = SimpleNamespace(attributes=lambda _: {}, model_output=(of_model or {}).get)
    return SimpleNamespace(keys=keys, operands=operands)


MODEL = step(
    (REFERENCE, "conv1", "output", 0), (REFERENCE, "conv1", "output", 1), (REFERENCE, "fc", "output", 0)
)
DUMP = step(
    ("Conv2D", "conv1", "input", 0), ("Conv2D", "conv1", "output", 0), ("Conv2D", "conv1", "output", 1)
)
PLAIN_STEP = step(("Relu", "fc", "output", 0), ("Conv2D", "conv1", "output", 0))
#: The graph says which outputs of the model these are.
FUSED = step(
    ("Conv2D", "conv1fc", "output", 0),
    ("Conv2D", "conv1", "output", 0),
    of_model={0: ModelOutput("fc", 0), 1: ModelOutput("conv1", 1)},
)


@pytest.mark.parametrize(
    ("a", "b", "paired"),
    [
        (MODEL, DUMP, [(0, 1), (1, 2)]),
        (DUMP, MODEL, [(1, 0), (2, 1)]),
        (MODEL, MODEL, []),
        (DUMP, DUMP, []),
        (MODEL, FUSED, [(1, 1), (2, 0)]),
        (PLAIN_STEP, FUSED, [(0, 0)]),
        (FUSED, PLAIN_STEP, [(0, 0)]),
        (FUSED, FUSED, [(0, 0), (1, 1)]),
    ],
    ids=[
        "by operator and slot",
        "either side may be the reference",
        "two references are not paired here",
        "equal names alone are not one output",
        "fused",
        "fused as B",
        "fused as A",
        "both fused",
    ],
)
def test_outputs_of_the_model_are_paired(a: Any, b: Any, paired: list[tuple[int, int]]) -> None:
    found = by_model(a, b, range(len(a.keys)), range(len(b.keys)))
    assert [(pair.a, pair.b) for pair in found] == paired


# Which name of A is which name of B, as a mapping file says, and what is wrong with such a file.


def test_a_mapping_file_says_which_is_which(tmp_path: Path) -> None:
    text = """
pairs:
  - {a: "Cell.conv.*.output.?", b: "Module.conv.*.output.?"}
  - {regex: 'Dense\\.(?P<layer>\\w+)\\.(.*)', b: 'Linear.\\g<layer>.\\2'}
"""
    names = mapping(tmp_path / "m.yaml", text)
    assert names.name_in_b("Cell.conv.forward.0.output.0") == "Module.conv.forward.0.output.0"
    assert names.name_in_b("Dense.fc.output.0") == "Linear.fc.output.0"
    assert names.name_in_b("Other") is None
    assert names.unused(["Dense.fc.output.0"]) == [0]


def test_what_stands_for_itself_in_a_glob_is_no_pattern(tmp_path: Path) -> None:
    names = mapping(tmp_path / "m.yaml", r"pairs: [{a: 'a.b(c)\*', b: 'x\1*'}]")
    assert names.name_in_b("a.b(c)\\d") == "x\\1d"
    assert names.name_in_b("aXb(c)\\d") is None


def test_frameworks_are_compared_by_a_mapping(dumps: DumpLibrary, tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(
        r"""pairs:
  - {regex: 'Cell\.Dense\.Cell\.(\w+)\.Dense\.(.*)', b: 'Module.Linear.Module.\1.Linear.\2'}
  - {a: "Nothing.*", b: "Nowhere.*"}
"""
    )
    a, b = dumps["msprobe-26.2.0-mindspore-cpu"], dumps["msprobe-26.2.0-pytorch-cpu"] / "tensor-mix"
    found = compare(a, b, mapping=load_mapping(path))
    matched = [tensor for tensor in found.tensors if tensor.matched]
    assert {tensor.matched for tensor in matched} == {"mapping"}
    assert ("Cell.Dense.Cell.fc.Dense.forward.0.parameters.weight.-1") in {
        tensor.name_a for tensor in matched
    }
    assert found.counts[Verdict.ONLY_A] + len(matched) == 60
    assert "pair 2 of the mapping file fits no tensor of A" in found.notes
    # Without one, what operators do and the order tell which is which; weights differ, and so does all else.
    guessed = compare(a, b)
    assert guessed.first is not None
    assert guessed.first.tensor.name_a.startswith("Primitive.Conv2D.")
    assert guessed.first.tensor.name_b.startswith("Functional.conv2d.")


@pytest.mark.parametrize(
    ("glob", "template", "name", "other"),
    [
        ("a*b*c", "<*|*>", "aXbYbZc", "<X|YbZ>"),
        ("*.output.?", "*-?", "x.output.y.output.3", "x.output.y-3"),
        ("*.*", "*/*", "a.b.c", "a/b.c"),
        ("a?c*", "?*", "abcdef", "bdef"),
        ("**x", "*-*", "ax", "-a"),
        ("[a]*", "[b]*", "[a]c", "[b]c"),
        ("a*b*c", "<*|*>", "aXbY", None),
    ],
)
def test_globs_match_what_comes_first(
    tmp_path: Path, glob: str, template: str, name: str, other: str | None
) -> None:
    rules = mapping(tmp_path / "map.yml", f"pairs: [{{a: {glob!r}, b: {template!r}}}]")
    assert rules.name_in_b(name) == other


def test_no_glob_takes_long(tmp_path: Path) -> None:
    """With backtracking, this one would try more ways than there are atoms."""
    glob = "a*" * 40 + "b"
    rules = mapping(tmp_path / "map.yml", f"pairs: [{{a: {glob!r}, b: x}}]")
    assert rules.name_in_b("a" * 2000) is None


def test_a_regular_expression_that_takes_long_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = mapping(tmp_path / "map.yml", "pairs: [{regex: '(a|aa)+[^a]', b: x}]")
    monkeypatch.setattr(rules.rules[0]._compiled[0], "_left_s", 0.1)
    with pytest.raises(UsageError, match=r"regex '\(a\|aa\)\+\[\^a\]' takes too long for 'aaa"):
        rules.name_in_b("a" * 80)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pairs: [{a: x}]", r":1: pairs\.0\.b: Field required"),
        ("pairs:\n  - {b: x}", r":2: pairs\.0: .*either"),
        ("pairs:\n  - {a: x, b: y}\n  - {a: x, b: y, c: z}", r":3: pairs\.1\.c: is not known"),
        ("pairs: [{a: 'x*', b: '*y*'}]", "1 wildcard, "),
        ("pairs: [{regex: '(', b: y}]", "regex"),
        ("pairs: [{regex: 'x', b: '\\1'}]", "regex"),
        ("pears: []", ":1: .*"),
        ("- x", ":1: must hold names and values"),
        ("{", r":1: "),
        ("pairs: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("pairs: &a [*a]", "pairs|refers to itself"),
    ],
)
def test_a_wrong_mapping_file_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        mapping(tmp_path / "m.yaml", text)


# Programs that differ in what was fused, recomputed, renamed, reordered and left out.


def value(name: str, size: int = 8) -> Value:
    return Value(size, content=name)


def call(op_type: str, inputs: str, output: str, size: int = 8) -> OperatorCall:
    """Return a call whose values have these contents."""
    return OperatorCall(op_type, tuple(value(name, size) for name in inputs.split()), (value(output, size),))


PLAIN = [
    call("Parameter", "", "w"),
    call("aten.mm", "x w", "m"),
    call("aten.add", "m b", "s"),
    call("aten.relu", "s", "r"),
    call("aten.mm", "r w", "o"),
]

types = st.sampled_from(["aten.mm", "aten.add", "aten.relu", "MyKernel", "aten.view"])
programs = st.lists(
    st.tuples(types, st.integers(0, 6), st.integers(0, 6), st.integers(1, 3)), max_size=14
).map(lambda rows: [call(op, f"v{i}", f"v{o}", size) for op, i, o, size in rows])


def paired(a: list[OperatorCall], b: list[OperatorCall]) -> dict[int, int]:
    return {pair.a: pair.b for pair in align(a, b)[0]}


@given(programs, programs)
def test_each_call_is_in_one_pair_or_one_gap(a: list[OperatorCall], b: list[OperatorCall]) -> None:
    pairs, gaps = align(a, b)
    of_a = [pair.a for pair in pairs] + [gap.number for gap in gaps if gap.side == "A"]
    of_b = [pair.b for pair in pairs] + [gap.number for gap in gaps if gap.side == "B"]
    assert sorted(of_a) == list(range(len(a)))
    assert sorted(of_b) == list(range(len(b)))
    assert all(a[pair.a].result.size == b[pair.b].result.size for pair in pairs)  # type: ignore[union-attr]


@given(programs)
def test_a_program_is_aligned_with_itself(program: list[OperatorCall]) -> None:
    pairs = paired(program, program)
    assert len(pairs) == len(program)
    # Calls that are alike in all respects may change places.
    assert all(program[a] == program[b] for a, b in pairs.items() if program[a].inputs[0].size > 1)


@given(st.permutations(range(12)))
def test_the_order_does_not_matter_where_content_is_known(order: list[int]) -> None:
    program = [call("aten.mm", f"i{number}", f"o{number}") for number in range(12)]
    assert paired(program, [program[place] for place in order]) == {
        place: number for number, place in enumerate(order)
    }


@given(programs, st.integers(0, 13))
def test_a_call_that_is_left_out_is_a_gap(program: list[OperatorCall], place: int) -> None:
    less = program[:place] + program[place + 1 :]
    assert len(paired(program, less)) == len(less)


def test_what_was_fused_is_named() -> None:
    fused = [PLAIN[0], call("MatMulAddReluFusion", "x w b", "r"), PLAIN[4]]
    pairs, gaps = align(fused, PLAIN)
    assert [(pair.a, pair.b) for pair in pairs] == [(0, 0), (1, 3), (2, 4)]
    assert gaps == [("B", 1, Why.FUSED, 1), ("B", 2, Why.FUSED, 1)]


def test_what_is_computed_again_is_named() -> None:
    again = [*PLAIN, call("aten.relu", "s", "r"), call("aten.view", "o", "o")]
    assert align(again, PLAIN)[1] == [("A", 5, Why.RECOMPUTED, 3), ("A", 6, Why.MOVES, None)]


def test_it_goes_on_behind_a_difference() -> None:
    """No content agrees any more: what was read, and what is done, tell which is which."""
    wrong = [
        *PLAIN[:3],
        call("aten.detach", "s", "s"),
        call("Functional.leaky_relu", "s", "r2"),
        call("aten.mm", "r2 w", "o2"),
        call("aten.sum", "o2", "l2"),
    ]
    right = [*PLAIN, call("aten.sum", "o", "l")]
    pairs = {pair.a: (pair.b, pair.because) for pair in align(wrong, right)[0]}
    assert pairs[4] == (3, MatchedBy.PRODUCERS)
    assert pairs[5] == (4, MatchedBy.PRODUCERS)
    assert pairs[6] == (5, MatchedBy.PRODUCERS)


def test_what_is_known_is_kept() -> None:
    assert (1, 4, MatchedBy.EXACT) in align(PLAIN, PLAIN, {1: 4})[0]


NAN = math.nan


def measured(l2: float, low: float, high: float, *, size: int = 9, narrow: bool = False) -> Value:
    return Value(size, None, (NAN, l2, low, high, (low + high) / 2), is_narrow=narrow)


def of_one(value: Value) -> list[OperatorCall]:
    return [OperatorCall("op", (), (value,))]


def are_same(first: Value, second: Value) -> bool:
    classes, _ = classes_of(of_one(first), of_one(second))
    return id(first) in classes and classes[id(first)] == classes.get(id(second))


def test_nearly_equal_marks_are_the_same_value() -> None:
    assert are_same(measured(3.0, -1.0, 2.0), measured(3.0003, -1.0001, 2.0))
    assert not are_same(measured(3.0, -1.0, 2.0), measured(3.1, -1.0, 2.0))
    assert not are_same(measured(3.0, -1.0, 2.0), measured(3.0, -1.5, 2.0))
    assert not are_same(measured(3.0, -1.0, 2.0), measured(3.0, -1.0, 2.0, size=8))
    assert are_same(measured(3.0, -1.0, 2.0, narrow=True), measured(3.01, -1.003, 2.0))


def test_what_is_not_known_is_the_same_as_nothing() -> None:
    assert not are_same(Value(9), Value(9))
    assert Value(9).identity is None
    assert measured(1, 0, 1).identity == measured(1, 0, 1).identity


@pytest.mark.parametrize(
    ("op_type", "kinds"),
    [
        ("MatMulBiasAddReluFusion", {"matmul", "bias", "relu"}),
        ("aten.addmm.out", {"matmul", "bias"}),
        ("Module.Linear", {"matmul", "bias"}),
        ("BiasAdd", {"bias"}),
        ("ReluGrad", {"relu backward"}),
        ("aten.native_layer_norm_backward", {"norm backward"}),
        ("aten.t", {"move"}),
        ("Functional.max_pool2d", {"pool"}),
        ("aten.mul.Tensor", {"mul"}),
        ("MyKernel", {"mykernel"}),
    ],
)
def test_kinds(op_type: str, kinds: set[str]) -> None:
    assert kinds_of(op_type) == kinds


Scores = npt.NDArray[np.int64]

tables = st_numpy.arrays(
    np.int64,
    st.tuples(st.integers(0, 7), st.integers(0, 7)),
    elements=st.integers(-2, 9),
)


def best_sum(scores: Scores) -> int:
    """Return the largest sum of all alignments, by its definition."""

    @cache
    def best(row: int, column: int) -> int:
        if row == scores.shape[0] or column == scores.shape[1]:
            return 0
        paired = scores[row, column] + best(row + 1, column + 1) if scores[row, column] > 0 else 0
        return max(int(paired), best(row + 1, column), best(row, column + 1))

    return best(0, 0)


def aligned(scores: Scores) -> list[tuple[int, int]]:
    return align_sequences(lambda row: scores[row], *scores.shape)


@given(tables)
def test_no_other_alignment_has_a_larger_sum(scores: Scores) -> None:
    pairs = aligned(scores)
    assert sum(int(scores[pair]) for pair in pairs) == best_sum(scores)
    assert all(scores[pair] > 0 for pair in pairs)
    places_a, places_b = [a for a, _ in pairs], [b for _, b in pairs]
    assert places_a == sorted(set(places_a))
    assert places_b == sorted(set(places_b))


@given(st.text("abc", max_size=30), st.text("abc", max_size=30))
def test_what_is_left_out_of_a_sequence_is_a_gap(text: str, more: str) -> None:
    """All of a sequence is found in one that has other members between."""
    longer = "".join(f"{more[place : place + 1].upper()}{letter}" for place, letter in enumerate(text))
    scores = np.array([[letter == other for other in longer] for letter in text], np.int64)
    pairs = aligned(scores.reshape(len(text), len(longer)))
    assert "".join(longer[b] for _, b in pairs) == text
    assert [a for a, _ in pairs] == list(range(len(text)))
