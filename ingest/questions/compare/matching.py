"""Which tensor of A is which tensor of B, within one step.

Tensors are matched in this order, each time those that are still unmatched: by the mapping file, because the
user wrote it; by the exact key; as a reference of another framework, or as the same output of the model (see
below); by the exact name in another network or graph; by the name without the numbers that a compiler gives
(`-op12`, `_12`, the number of a call), in order of execution among those of one type, scope, input or output
and shape; the same for a single tensor on either side whose shape differs; and parameters whose names differ
in `.`, `_` and `/` alone. What is left is for `alignment`; what only one side has then may make no difference
(`without_effect`).

References (`ingest.layouts.cann`) name outputs by the operator of the model: `conv1`, output 0. The dump
of a compiled model has the same operator, or one that several were fused into: `conv1conv1_relu`, of which
DumpData or the graph of GE says that it is output 0 of `conv1_relu` of the model (CANN, accuracy comparison
of whole networks: `original_op` in DumpData, `_datadump_origin_name` in the graph). The model counts first,
then the name. Of two dumps of compiled models, with and without fusion for example, the same is true of
either.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.dump_configs.model import flatten
from ingest.layouts.cann import REFERENCE
from ingest.questions.compare.mapping import WILD, NameMapping
from ingest.questions.compare.result import GOOD, UNMATCHED, ComparedTensor, GuessedName, Verdict
from ingest.questions.compare.step_tensors import StepTensors
from ingest.questions.placement.decide import Certainty
from ingest.reader.context.ge_graph import ModelOutput
from ingest.reader.operator_kinds import FUNCTIONS, StepPart, is_input, is_parameter, parts_of
from ingest.reader.tensor_filter import FilterFields, TensorFilter
from workers.arrays.statistics import FIELDS
from workers.store.consolidated.blocks import OperatorKey, TensorKey
from workers.store.roles import hints_of, roles_of

_ByModel: TypeAlias = dict[ModelOutput, int]


def model_pairs(
    a: StepTensors, b: StepTensors, numbers_a: Iterable[int], numbers_b: Iterable[int]
) -> Iterator[tuple[int, int]]:
    """Yield the numbers of outputs of A and B that are the same output of the model.

    At least one side says so, or is a reference; the other may have the operator of the model by its name.
    """
    of_a, of_b = list(numbers_a), list(numbers_b)
    if is_reference(a, of_a) and is_reference(b, of_b):
        return
    told_a, named_a = _outputs(a, of_a)
    told_b, named_b = _outputs(b, of_b)
    taken: set[int] = set()
    for output, number in {**named_a, **told_a}.items():
        # Equal names alone are for those who compare types, too.
        other = told_b.get(output, named_b.get(output) if output in told_a else None)
        if other is not None and other not in taken:
            taken.add(other)
            yield number, other


def is_reference(tensors: StepTensors, numbers: Iterable[int]) -> bool:
    """Return whether some tensors are of another framework, and named by the operators of the model."""
    return any(tensors.keys[number].op_type == REFERENCE for number in numbers)


def _outputs(dump: StepTensors, numbers: Iterable[int]) -> tuple[_ByModel, _ByModel]:
    """Return the outputs by what they are in the model: as the dump tells, and of the others, by name."""
    told: _ByModel = {}
    named: _ByModel = {}
    numbers = list(numbers)
    if is_reference(dump, numbers):
        known = ((dump.keys[number], number) for number in numbers)
        return {ModelOutput(of.op_name, of.slot): n for of, n in known if of.op_type == REFERENCE}, {}
    for number in numbers:
        key = dump.keys[number]
        if key.io != "output":
            continue
        operands = dump.operands
        if (output := _told(operands.attributes(number)) or operands.model_output(number)) is not None:
            told.setdefault(output, number)
        else:
            named.setdefault(ModelOutput(flatten(key.op_name), key.slot), number)
    return told, named


def _told(attributes: dict[str, Any]) -> ModelOutput | None:
    """Return the output of the model that DumpData names; None if it names none."""
    told = attributes.get("tensor")
    original = told.get("original_op") if isinstance(told, dict) else None
    if not isinstance(original, dict):
        return None
    name, slot = original.get("name"), original.get("output")
    return ModelOutput(flatten(name), slot) if isinstance(name, str) and isinstance(slot, int) else None


#: Numbers at the end of an operator's name.
_TRAILING = re.compile(r"(?:[-_.]?(?:op)?\d+)+$")
#: The number of a call in the names of msProbe: `Torch.relu.0.forward`, `Cell.fc.Dense.forward.0`.
_CALL = re.compile(r"\.\d+\.(forward|backward)\b|\.(forward|backward|parameters_grad)\.\d+\b")

#: What stands between the parts of the name of a parameter.
_SPELLING = re.compile(r"[._/]+")

#: Tensors, in the order of execution.
_Numbers: TypeAlias = dict[int, None]
GroupKey: TypeAlias = Callable[[StepTensors, int], Hashable]
"""Returns what a tensor, given by its number, has in common with those that it may be matched with."""
_Groups: TypeAlias = dict[Hashable, list[int]]
_Matcher: TypeAlias = Callable[[StepTensors, StepTensors, _Numbers, _Numbers], Iterable["TensorPair"]]
"""Returns which tensors of A and of B are the same, of those that are in no pair yet."""


class MatchedBy(StrEnum):
    """What showed that two tensors are the same."""

    MAPPING = "mapping"
    EXACT = "exact"
    NAME = "name"
    """They have the same name, in another network or graph."""
    REFERENCE = "reference"
    """One is an output of an operator of the model in a dump of another framework, the other that of the
    operator that was made of it."""
    MODEL = "model"
    """Both were compiled from the same output of the model, as one side says at least."""
    ORDER = "order"
    """They have the same type, scope, slot and shape, and the same place in the order of such tensors."""
    SPELLING = "spelling"
    """Parameters whose names differ in `.`, `_` and `/` alone. This and the next are of two versions."""
    SCOPE = "scope"
    """Their operators are in the same cell of the network."""
    CONTENT = "content"
    """They have the same bytes."""
    PRODUCERS = "producers"
    """Operators do the same, and read what the same operators wrote."""
    SEQUENCE = "sequence"
    """Type, sizes and order of execution agree; nothing else is known."""

    @property
    def is_of_versions(self) -> bool:
        """Whether names differ because two versions of a framework wrote them."""
        return self in _OF_VERSIONS

    @property
    def is_guess(self) -> bool:
        """Whether neither names nor the user say that two tensors are the same."""
        return self is MatchedBy.ORDER or self.is_of_versions


#: Of these, no tensor might as well be matched with another one.
_UNAMBIGUOUS = frozenset({MatchedBy.MAPPING, MatchedBy.REFERENCE, MatchedBy.MODEL, MatchedBy.SPELLING})
_OF_VERSIONS = frozenset(
    {
        MatchedBy.SPELLING,
        MatchedBy.SCOPE,
        MatchedBy.CONTENT,
        MatchedBy.PRODUCERS,
        MatchedBy.SEQUENCE,
    }
)


class Form(StrEnum):
    """How a tensor of B is looked at, to be compared with one of A."""

    AS_IS = ""
    TRANSPOSED = "transposed"
    """With exchanged axes, as frameworks keep weights in other ways."""
    RESHAPED = "reshaped"
    """Element by element in the order in which they lie, with the shape of A."""


class TensorPair(NamedTuple):
    """Two tensors, by their numbers in the order of execution.

    A tuple, because one is made for every tensor of every step: a dataclass takes five times as long to make.
    """

    a: int
    b: int
    matched_by: MatchedBy
    ambiguous: bool = False
    """Whether one of them might as well be matched with another tensor.

    That is so if one side has more of these than the other, if digests show that they are in another order,
    or if other operators whose names differ only in their numbers show that these were given again.
    """
    form: Form = Form.AS_IS


@dataclass(frozen=True, slots=True)
class Matching:
    """All tensors of one step, matched or not."""

    pairs: list[TensorPair]
    """In order of execution in A."""
    only_a: list[int]
    only_b: list[int]


def match_tensors(a: StepTensors, b: StepTensors, mapping: NameMapping | None = None) -> Matching:
    """Match the tensors of two steps; each is in one pair at most."""
    matchers = _MATCHERS
    if mapping is not None and mapping.rules:
        matchers = (partial(_by_mapping, mapping=mapping), *_MATCHERS)
    elif a.keys == b.keys:
        numbers = range(len(a.keys))
        return Matching(list(map(TensorPair, numbers, numbers, repeat(MatchedBy.EXACT))), [], [])
    left = _Unmatched(a, b)
    pairs = [pair for matcher in matchers for pair in left.take(matcher)]
    if left.a or left.b or not _are_exact(pairs):
        pairs = list(_mark_ambiguous(a, b, pairs))
    return Matching(sorted(pairs, key=attrgetter("a")), list(left.a), list(left.b))


class _Unmatched:
    """The tensors of two steps that are in no pair yet."""

    def __init__(self, a: StepTensors, b: StepTensors) -> None:
        self._sides = a, b
        self.a, self.b = _numbers(a), _numbers(b)

    def take(self, matcher: _Matcher) -> list[TensorPair]:
        """Return the pairs that a matcher finds among these tensors, and forget their members."""
        if not self.a or not self.b:
            return []
        pairs = list(matcher(*self._sides, self.a, self.b))
        for pair in pairs:
            del self.a[pair.a], self.b[pair.b]
        return pairs


def _numbers(tensors: StepTensors) -> _Numbers:
    return dict.fromkeys(range(len(tensors.keys)))


def without_numbers(op_name: str) -> str:
    """Return the name of an operator without the numbers that change from one compilation to the next."""
    plain = _CALL.sub(lambda match: f".{match[1] or match[2]}", op_name)
    return _TRAILING.sub("", plain)


def _by_mapping(
    a: StepTensors, b: StepTensors, left_a: _Numbers, left_b: _Numbers, mapping: NameMapping
) -> Iterator[TensorPair]:
    by_name = _grouped(b, left_b, _full_name)
    wanted: _Groups = {}
    for number in left_a:
        name = mapping.name_in_b(a.keys[number].name)
        if name in by_name:
            wanted.setdefault(name, []).append(number)
    yield from _in_order(wanted, by_name, MatchedBy.MAPPING)


def _by_key(a: StepTensors, b: StepTensors, left_a: _Numbers, left_b: _Numbers) -> Iterator[TensorPair]:
    by_key = {b.keys[number]: number for number in left_b}
    for number in left_a:
        if (key := a.keys[number]) in by_key:
            yield TensorPair(number, by_key[key], MatchedBy.EXACT)


def _by_model(a: StepTensors, b: StepTensors, left_a: _Numbers, left_b: _Numbers) -> Iterator[TensorPair]:
    has_reference = is_reference(a, left_a) or is_reference(b, left_b)
    for pair in model_pairs(a, b, left_a, left_b):
        yield TensorPair(*pair, MatchedBy.REFERENCE if has_reference else MatchedBy.MODEL)


def _by_name(a: StepTensors, b: StepTensors, left_a: _Numbers, left_b: _Numbers) -> Iterator[TensorPair]:
    yield from _in_order(_grouped(a, left_a, _name), _grouped(b, left_b, _name), MatchedBy.NAME)


def _by_order(a: StepTensors, b: StepTensors, left_a: _Numbers, left_b: _Numbers) -> Iterator[TensorPair]:
    groups_a, groups_b = _grouped(a, left_a, _scope_and_shape), _grouped(b, left_b, _scope_and_shape)
    yield from _in_order(groups_a, groups_b, MatchedBy.ORDER)


def _alone(a: StepTensors, b: StepTensors, left_a: _Numbers, left_b: _Numbers) -> Iterator[TensorPair]:
    """Match tensors that are alone in their scopes: nothing tells several with other shapes apart."""
    groups_b = _grouped(b, left_b, _scope)
    for scope, numbers in _grouped(a, left_a, _scope).items():
        others = groups_b.get(scope, [])
        if len(numbers) == len(others) == 1:
            yield TensorPair(numbers[0], others[0], MatchedBy.ORDER)


def _by_spelling(a: StepTensors, b: StepTensors, left_a: _Numbers, left_b: _Numbers) -> Iterator[TensorPair]:
    """Match parameters, which two versions of a framework may spell differently."""
    groups_a, groups_b = (
        _grouped(side, (number for number in left if side.keys[number].op_type == "Parameter"), _spelling)
        for side, left in ((a, left_a), (b, left_b))
    )
    yield from _in_order(groups_a, groups_b, MatchedBy.SPELLING)


def _in_order(groups_a: _Groups, groups_b: _Groups, matched_by: MatchedBy) -> Iterator[TensorPair]:
    """Match the tensors of each group in order of execution."""
    for key, numbers in groups_a.items():
        others = groups_b.get(key, [])
        ambiguous = len(numbers) != len(others)
        for a, b in zip(numbers, others, strict=False):
            yield TensorPair(a, b, matched_by, ambiguous)


def _are_exact(pairs: Iterable[TensorPair]) -> bool:
    return all(pair.matched_by is MatchedBy.EXACT for pair in pairs)


def _mark_ambiguous(a: StepTensors, b: StepTensors, pairs: Iterable[TensorPair]) -> Iterator[TensorPair]:
    """Mark the pairs of which one tensor might as well be matched with another."""
    groups: dict[Hashable, list[TensorPair]] = {}
    for pair in pairs:
        if pair.matched_by in _UNAMBIGUOUS:
            yield pair
        else:
            groups.setdefault(_scope(a, pair.a), []).append(pair)
    operators_a, operators_b = _operators(a), _operators(b)
    for scope, members in groups.items():
        names_a, names_b = operators_a[scope], operators_b[scope]
        if names_a != names_b and not names_a.isdisjoint(names_b):
            # The numbers in their names were given again.
            yield from (pair._replace(ambiguous=True) for pair in members)
        else:
            yield from _mark_other_order(a, b, members)


def _mark_other_order(a: StepTensors, b: StepTensors, pairs: Iterable[TensorPair]) -> Iterator[TensorPair]:
    """Mark the pairs of one scope whose digests show that B has the same tensors in another order."""
    pairs = list(pairs)
    digests_b = {b.digests[pair.b].tobytes() for pair in pairs}
    for pair in pairs:
        digest = a.digests[pair.a].tobytes()
        is_elsewhere = any(digest) and digest != b.digests[pair.b].tobytes() and digest in digests_b
        is_doubtful = pair.matched_by is MatchedBy.ORDER and is_elsewhere
        yield pair._replace(ambiguous=True) if is_doubtful else pair


def _operators(tensors: StepTensors) -> dict[Hashable, set[str]]:
    """Return the names of operators, by what stays the same when numbers are given again."""
    names: dict[Hashable, set[str]] = {}
    for number, key in enumerate(tensors.keys):
        names.setdefault(_scope(tensors, number), set()).add(key.op_name)
    return names


def _grouped(tensors: StepTensors, numbers: Iterable[int], key: GroupKey) -> _Groups:
    groups: _Groups = {}
    for number in numbers:
        groups.setdefault(key(tensors, number), []).append(number)
    return groups


def _full_name(tensors: StepTensors, number: int) -> Hashable:
    return tensors.keys[number].name


def _name(tensors: StepTensors, number: int) -> Hashable:
    return tensors.keys[number]._replace(net="", graph="")


def _scope(tensors: StepTensors, number: int) -> tuple[Hashable, ...]:
    key = tensors.keys[number]
    return key.op_type, without_numbers(key.op_name), key.io, key.slot


def _scope_and_shape(tensors: StepTensors, number: int) -> Hashable:
    return *_scope(tensors, number), tensors.shapes[number]


def _spelling(tensors: StepTensors, number: int) -> Hashable:
    key = tensors.keys[number]
    return _SPELLING.sub("_", key.op_name), key.io, key.slot, key.copy, tensors.shapes[number]


#: How tensors are matched, the surest way first: each looks at those that the ones before it have left.
_MATCHERS: tuple[_Matcher, ...] = (
    _by_key,
    _by_model,
    _by_name,
    _by_order,
    _alone,
    _by_spelling,
)


_KEY_FIELDS = ("net", "graph", "op_type", "op_name", "io", "slot", "occurrence", "name")
#: The columns that a condition on compared tensors may name.
COLUMNS = frozenset([*_KEY_FIELDS, *FIELDS, "rank", "step", "dtype", "role"])


def only_chosen(matching: Matching, a: StepTensors, b: StepTensors, fields: FilterFields) -> Matching:
    """Return the pairs of which the tensor of A is chosen, and the chosen ones of what is not matched.

    Raises:
        UsageError: the conditions are not valid.
    """
    choice = TensorFilter(fields, COLUMNS)
    if not choice.names:
        return matching
    of_a, of_b = _mask(choice, a), _mask(choice, b)
    return Matching(
        [pair for pair in matching.pairs if of_a[pair.a]],
        [number for number in matching.only_a if of_a[number]],
        [number for number in matching.only_b if of_b[number]],
    )


def _mask(choice: TensorFilter, side: StepTensors) -> npt.NDArray[np.bool_]:
    return choice.mask({name: _column(side, name) for name in choice.names}, len(side.keys))


def _column(side: StepTensors, name: str) -> Any:
    if name in FIELDS:
        return side.statistics[:, FIELDS.index(name)]
    if name == "role":
        return _roles(side)
    if name in ("rank", "step"):
        return getattr(side.key, name)
    values = side.dtypes if name == "dtype" else [getattr(key, name) for key in side.keys]
    return np.array(values, np.int64 if name in ("slot", "occurrence") else object)


def _roles(side: StepTensors) -> npt.NDArray[Any]:
    hints = hints_of((key.op_type, key.op_name, key.io, key.slot) for key in side.keys)
    counts = np.array([np.prod(shape, dtype=np.float64) for shape in side.shapes], np.float64)
    return roles_of(hints, counts, [(key.net, key.graph) for key in side.keys])


_HEADER = """\
# Names of A, and the names of B that they were guessed to be. Every line is a guess: read it before you rely
# on it. scope: in the network; content: equal bytes; sequence: type, size and order of execution.
# dump-ingest compare {a} {b} --map THIS_FILE
pairs:
"""


def guessed_names(a: StepTensors, b: StepTensors, pairs: Iterable[TensorPair]) -> dict[str, GuessedName]:
    """Return the guesses among the pairs of a step, by pattern over the names of A.

    A guess is about a whole operator (`MatMul.MatMul-op47.*`) if all tensors that both have were paired.
    """
    by_operator: dict[tuple[OperatorKey, OperatorKey], list[TensorPair]] = {}
    of_versions = {how for how in MatchedBy if how.is_of_versions}
    for pair in pairs:
        if pair.matched_by in of_versions:
            operators = a.keys[pair.a].operator, b.keys[pair.b].operator
            by_operator.setdefault(operators, []).append(pair)
    if not by_operator:
        return {}
    places_a, places_b = _places(a), _places(b)
    names: dict[str, GuessedName] = {}
    for (operator_a, operator_b), members in by_operator.items():
        how = members[0].matched_by.value
        same_places = all(_place(a, pair.a) == _place(b, pair.b) for pair in members)
        is_whole = same_places and len(places_a[operator_a] & places_b[operator_b]) == len(members)
        patterns = _patterns(operator_a, operator_b) if is_whole else None
        texts = [patterns] if patterns else [(a.keys[pair.a].name, b.keys[pair.b].name) for pair in members]
        for name_a, name_b in texts:
            names.setdefault(name_a, GuessedName(name_a, name_b, how))
    return names


def _patterns(a: OperatorKey, b: OperatorKey) -> tuple[str, str] | None:
    """Return patterns of all tensors of two operators; None if they would mean other tensors, too.

    That is if the operators are of different types, occur several times, or have `*` or `?` in their names.
    """
    *_, type_a, name_a, occurrence_a = a
    *_, type_b, name_b, occurrence_b = b
    tensors_a, tensors_b = f"{type_a}.{name_a}.", f"{type_b}.{name_b}."
    is_ambiguous = type_a != type_b or occurrence_a or occurrence_b
    if is_ambiguous or WILD.search(tensors_a) or WILD.search(tensors_b):
        return None
    return f"{tensors_a}*", f"{tensors_b}*"


def _places(side: StepTensors) -> dict[OperatorKey, set[tuple[str, int]]]:
    places: dict[OperatorKey, set[tuple[str, int]]] = {}
    for key in side.keys:
        places.setdefault(key.operator, set()).add((key.io, key.slot))
    return places


def _place(side: StepTensors, number: int) -> tuple[str, int]:
    key = side.keys[number]
    return key.io, key.slot


def mapping_text(names: Iterable[GuessedName], labels: Mapping[str, str]) -> str:
    """Return a mapping file of these guesses.

    Args:
        names: the guesses.
        labels: what A and B are, by `a` and `b`.
    """
    lines = [f"  - {_pair(name)}  # guess: {name.how}" for name in names]
    # No pairs at all are a valid file, too.
    body = "\n".join(lines) + "\n" if lines else "  []\n"
    return _HEADER.format(**{side: json.dumps(label) for side, label in labels.items()}) + body


def _pair(name: GuessedName) -> str:
    is_glob = name.name_a.endswith(".*") and name.name_b.endswith(".*")
    plain_a, plain_b = (text.removesuffix(".*") if is_glob else text for text in (name.name_a, name.name_b))
    if WILD.search(plain_a) or WILD.search(plain_b):
        template = name.name_b.replace("\\", r"\\")
        return f"{{regex: {json.dumps(re.escape(name.name_a))}, b: {json.dumps(template)}}}"
    return f"{{a: {json.dumps(name.name_a)}, b: {json.dumps(name.name_b)}}}"


def with_last_gradients(matching: Matching, a: StepTensors, b: StepTensors) -> Matching:
    """Return a matching in which gradients that were added up in other numbers of calls are the last ones.

    Each call dumps the gradient of a parameter again, with its part added: only the last one is whole.
    """
    sides: list[defaultdict[TensorKey, list[int]]] = []
    for tensors in (a, b):
        sides.append(defaultdict(list))
        for number, part in enumerate(tensors.parts):
            if part is StepPart.PARAMETER_GRADIENT:
                sides[-1][tensors.keys[number]._replace(occurrence=0, copy=0)].append(number)
    added = [
        (sides[0][name], sides[1][name])
        for name in sides[0].keys() & sides[1].keys()
        if len(sides[0][name]) != len(sides[1][name])
    ]
    if not added:
        return matching
    of_a, of_b = ({n for pair in added for n in pair[side]} for side in (0, 1))
    pairs = [pair for pair in matching.pairs if pair.a not in of_a and pair.b not in of_b]
    pairs += [TensorPair(own[-1], other[-1], MatchedBy.NAME) for own, other in added]
    return _with_pairs(matching, pairs, a, b)


def with_same_calls(matching: Matching, a: StepTensors, b: StepTensors) -> Matching:
    """Return a matching in which calls that were given the same bytes are the same call.

    Calls are paired by their numbers, which an evaluation between two steps moves, or one call more. What is
    called as often in each of them moves along.
    """
    if not (matching.only_a or matching.only_b):
        return matching
    moved, again = _moved_calls(_called_unevenly(a, b), a.contents, b.contents)
    taken = set(moved.values())
    pairs = [pair for pair in matching.pairs if pair.a not in again and pair.b not in taken]
    pairs += [TensorPair(number, moved[number], MatchedBy.NAME) for number in moved]
    return _with_pairs(matching, pairs, a, b) if moved else matching


def _moved_calls(
    uneven: Mapping[TensorKey, tuple[list[int], list[int]]], a: Sequence[bytes], b: Sequence[bytes]
) -> tuple[dict[int, int], set[int]]:
    """Return the counterparts of what was called with the same bytes, and all of A that was called along.

    Args:
        uneven: what was called, not as often on both sides.
        a: the digests of A.
        b: those of B.
    """
    called = [name for name in uneven if is_input(name.io)]
    moved: dict[int, int] = {}
    again: set[int] = set()
    while called:
        own, other = uneven[called[0]]
        same = _same_contents([a[n] for n in own], [b[n] for n in other])
        along = [name for name in uneven if _called_along(*uneven[name], own, other)]
        for name in along if same else ():
            again.update(uneven[name][0])
            moved |= _along(*uneven[name], len(uneven[name][0]) // len(own), same)
        called = [name for name in called[1:] if name not in along]
    return moved, again


def _called_unevenly(a: StepTensors, b: StepTensors) -> dict[TensorKey, tuple[list[int], list[int]]]:
    """Return what both sides called, and not as often."""
    of_a, of_b = _calls_of(a), _calls_of(b)
    return {
        name: (own, of_b[name]) for name, own in of_a.items() if name in of_b and len(own) != len(of_b[name])
    }


def _along(a: Sequence[int], b: Sequence[int], each: int, same: Mapping[int, int]) -> dict[int, int]:
    """Return the counterparts of what is called so often in each of some calls, which `same` pairs."""
    return {
        a[call * each + place]: b[other * each + place]
        for call, other in same.items()
        for place in range(each)
    }


def _called_along(a: Sequence[int], b: Sequence[int], own: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether something is called as often in each of some calls, on both sides."""
    return len(a) * len(other) == len(b) * len(own) and len(a) % len(own) == 0


def _calls_of(tensors: StepTensors) -> dict[TensorKey, list[int]]:
    """Return the numbers of what was dumped in each call, by name; parameters and gradients left out."""
    calls: dict[TensorKey, list[int]] = {}
    for number, part in enumerate(tensors.parts):
        if part is StepPart.ACTIVATION and not tensors.keys[number].op_type.startswith(FUNCTIONS):
            calls.setdefault(tensors.keys[number]._replace(occurrence=0, copy=0), []).append(number)
    return calls


def _same_contents(own: Sequence[bytes], other: Sequence[bytes]) -> dict[int, int]:
    """Return the places of calls that were given the same, in order; none unless all of a side are found.

    None, too, if those with the same numbers were given the same already.
    """
    is_shorter = len(own) < len(other)
    few, many = (own, other) if is_shorter else (other, own)
    if not all(map(any, few)) or list(few) == list(many[: len(few)]):
        return {}
    found, begin = list[int](), 0
    for content in few:
        place = next((n for n in range(begin, len(many)) if many[n] == content), None)
        if place is None:
            return {}
        found.append(place)
        begin = place + 1
    return dict(enumerate(found)) if is_shorter else {place: n for n, place in enumerate(found)}


def _with_pairs(matching: Matching, pairs: list[TensorPair], a: StepTensors, b: StepTensors) -> Matching:
    """Return a matching with these pairs alone."""
    paired = {pair.a for pair in pairs}, {pair.b for pair in pairs}
    return replace(
        matching,
        pairs=sorted(pairs),
        only_a=sorted(set(range(len(a.keys))) - paired[0]),
        only_b=sorted(set(range(len(b.keys))) - paired[1]),
    )


def counterparts(
    a: StepTensors, b: StepTensors, pairs: Sequence[TensorPair]
) -> dict[tuple[str, OperatorKey], OperatorKey]:
    """Return the counterpart of each operator, by side: the one with which it shares most tensors."""
    shared = Counter((a.keys[pair.a].operator, b.keys[pair.b].operator) for pair in pairs)
    partners: dict[tuple[str, OperatorKey], OperatorKey] = {}
    for (first, second), _ in shared.most_common():
        partners.setdefault(("A", first), second)
        partners.setdefault(("B", second), first)
    return partners


#: With fewer tensors that agree, nothing is known of what others do.
_FEWEST = 3
_NO_EFFECT = "nothing that both sides have differs"


def without_effect(
    rows: Sequence[ComparedTensor], named: int, keys: tuple[Iterable[TensorKey], Iterable[TensorKey]]
) -> list[ComparedTensor]:
    """Return the rows of a step, with what makes no difference as ignored.

    That is what only one side has, such as recomputed activations, or what is paired by more than names, if
    all else agrees: had it an effect, something would differ. Parameters and their gradients have theirs in
    later steps; one in another form, such as a sparse gradient, is there on both sides.

    Args:
        rows: the step's, of equal tensors maybe none.
        named: how many pairs names tell.
        keys: the tensors of A and of B.
    """
    if named < _FEWEST or not all(row.verdict in GOOD for row in rows if is_sure(row)):
        return list(rows)
    parts = [parts_of(of_side) for of_side in keys]
    operators = [{f"{key.op_type}.{key.op_name}" for key in of_side} for of_side in keys]

    def is_missing(row: ComparedTensor) -> bool:
        matters = parts[not row.name_a][row.number].is_of_parameter
        operator = row.name.rpartition(f".{row.io}")[0]
        return matters and (row.verdict is Verdict.SHAPE or operator not in operators[bool(row.name_a)])

    return [
        row
        if is_sure(row) or row.verdict in GOOD or is_missing(row)
        else replace(row, verdict=Verdict.IGNORED, reason=row.reason or _NO_EFFECT)
        for row in rows
    ]


def is_sure(row: ComparedTensor) -> bool:
    """Return whether names tell that both sides have the tensor: a number of a call does not.

    Nor do they if shapes differ: the calls of one side may read more samples than those of the other. Where
    it is open how ranks hold a tensor, or only likely, nothing but what was computed from it tells.
    """
    if row.verdict is Verdict.UNKNOWN:
        if row.held is None:
            return True
        untold: dict[str, str] = {Certainty.OPEN: row.held.explanation, Certainty.LIKELY: ""}
        return untold.get(row.held.certainty) != row.reason
    is_told = not row.guessed and not row.op_type.startswith(FUNCTIONS) and row.verdict is not Verdict.SHAPE
    return is_told and row.verdict not in UNMATCHED


_UPDATED = "dumped before its update on one side, and after it on the other: operators read the same"


def ignoring_updates(
    rows: Sequence[ComparedTensor],
    pairs: Iterable[TensorPair],
    keys: Sequence[TensorKey],
    contents: tuple[Sequence[bytes], Sequence[bytes]],
) -> list[ComparedTensor]:
    """Return the rows of two programs, with parameters as ignored that differ by their update alone.

    Such a parameter differs, and all that reads it as one side dumped it reads the same on the other side.

    Args:
        rows: those of tensors that both sides have.
        pairs: the tensors that were compared.
        keys: the names of the tensors of A.
        contents: the digests of the tensors of A, and of B; zeros if not known.
    """
    pair_of = {pair.a: pair for pair in pairs}
    readers: tuple[dict[bytes, list[int]], ...] = ({}, {})
    for pair in pair_of.values():
        if is_input(keys[pair.a].io) and pair.matched_by.is_guess:
            for place, content in enumerate(_contents(pair, contents)):
                readers[place].setdefault(content, []).append(pair.a)
    differ = {row.number for row in rows if row.verdict is Verdict.DIFFERENT}

    def is_updated(row: ComparedTensor) -> bool:
        own = _contents(pair_of[row.number], contents)
        read = [known.get(content, []) for known, content in zip(readers, own, strict=True) if any(content)]
        return any(numbers and differ.isdisjoint(numbers) for numbers in read)

    return [
        replace(row, verdict=Verdict.IGNORED, reason=_UPDATED)
        if row.number in differ and is_parameter(row.op_type) and is_updated(row)
        else row
        for row in rows
    ]


def _contents(pair: TensorPair, contents: tuple[Sequence[bytes], Sequence[bytes]]) -> tuple[bytes, bytes]:
    return contents[0][pair.a], contents[1][pair.b]
