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
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from enum import StrEnum
from functools import partial
from itertools import accumulate, repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ingest.dump_configs.model import flatten
from ingest.layouts.cann import REFERENCE
from ingest.questions.compare.mapping import WILD, NameMapping
from ingest.questions.compare.result import GOOD, UNMATCHED, ComparedTensor, GuessedName, Verdict
from ingest.questions.compare.sources import StepTensors
from ingest.questions.placement.decide import Certainty
from ingest.reader.context.ge_graph import ModelOutput
from ingest.reader.operator_kinds import FUNCTIONS, StepPart, is_input, is_parameter, parts_of
from ingest.reader.tensor_filter import FilterFields, TensorFilter
from workers.arrays.statistics import FIELDS
from workers.store.consolidated.blocks import OperatorKey, TensorKey
from workers.store.roles import hints_of, roles_of


def by_model(
    a: StepTensors, b: StepTensors, left_a: Iterable[int], left_b: Iterable[int]
) -> Iterator[TensorPair]:
    """Yield the outputs of A and B that are the same output of the model.

    At least one side says so, or is a reference; the other may have the operator of the model by its name.
    """
    of_references = is_reference(a, left_a), is_reference(b, left_b)
    if all(of_references):
        return
    matched_by = MatchedBy.REFERENCE if any(of_references) else MatchedBy.MODEL
    told_a, named_a = _outputs(a, left_a)
    told_b, named_b = _outputs(b, left_b)
    taken: set[int] = set()
    for output, number in {**named_a, **told_a}.items():
        # Equal names alone are for those who compare types, too.
        other = told_b.get(output, named_b.get(output) if output in told_a else None)
        if other is not None and other not in taken:
            taken.add(other)
            yield TensorPair(number, other, matched_by)


def is_reference(tensors: StepTensors, numbers: Iterable[int]) -> bool:
    """Return whether some tensors are of another framework, and named by the operators of the model."""
    return any(tensors.keys[number].op_type == REFERENCE for number in numbers)


def _outputs(
    dump: StepTensors, numbers: Iterable[int]
) -> tuple[dict[ModelOutput, int], dict[ModelOutput, int]]:
    """Return the outputs by what they are in the model: as the dump tells, and of the others, by name."""
    told: dict[ModelOutput, int] = {}
    named: dict[ModelOutput, int] = {}
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

GroupKey: TypeAlias = Callable[[StepTensors, int], Hashable]
"""Returns what a tensor, given by its number, has in common with those that may be its match; else None."""
_Groups: TypeAlias = dict[Hashable, list[int]]
_Matcher: TypeAlias = Callable[
    [StepTensors, StepTensors, Iterable[int], Iterable[int]], Iterable["TensorPair"]
]
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


def match_tensors(a: StepTensors, b: StepTensors, mapping: NameMapping | None = None) -> list[TensorPair]:
    """Match the tensors of two steps, in order of execution in A; each is in one pair at most."""
    matchers = _MATCHERS
    if mapping is not None and mapping.rules:
        matchers = (partial(_by_mapping, mapping=mapping), *_MATCHERS)
    elif a.keys == b.keys:
        numbers = range(len(a.keys))
        return list(map(TensorPair, numbers, numbers, repeat(MatchedBy.EXACT)))
    left_a, left_b = dict.fromkeys(range(len(a.keys))), dict.fromkeys(range(len(b.keys)))
    pairs: list[TensorPair] = []
    for matcher in matchers:
        found = list(matcher(a, b, left_a, left_b)) if left_a and left_b else []
        pairs += found
        for pair in found:
            del left_a[pair.a], left_b[pair.b]
    if not _are_all_exact(a, b, pairs):
        pairs = list(_mark_ambiguous(a, b, pairs))
    return sorted(pairs)


def _are_all_exact(a: StepTensors, b: StepTensors, pairs: Sequence[TensorPair]) -> bool:
    is_whole = len(pairs) == len(a.keys) == len(b.keys)
    return is_whole and all(pair.matched_by is MatchedBy.EXACT for pair in pairs)


def unmatched(a: StepTensors, b: StepTensors, pairs: Iterable[TensorPair]) -> tuple[list[int], list[int]]:
    """Return the tensors of A and of B that are in no pair, in order of execution."""
    left_a, left_b = (dict.fromkeys(range(len(side.keys))) for side in (a, b))
    for pair in pairs:
        left_a.pop(pair.a, None)
        left_b.pop(pair.b, None)
    return list(left_a), list(left_b)


def without_numbers(op_name: str) -> str:
    """Return the name of an operator without the numbers that change from one compilation to the next."""
    plain = _CALL.sub(lambda match: f".{match[1] or match[2]}", op_name)
    return _TRAILING.sub("", plain)


def _by_mapping(
    a: StepTensors, b: StepTensors, left_a: Iterable[int], left_b: Iterable[int], mapping: NameMapping
) -> Iterator[TensorPair]:
    wanted = _grouped(a, left_a, lambda side, number: mapping.name_in_b(side.keys[number].name))
    of_b = _grouped(b, left_b, lambda side, number: side.keys[number].name)
    yield from _in_order(wanted, of_b, MatchedBy.MAPPING)


def _by_key(
    a: StepTensors, b: StepTensors, left_a: Iterable[int], left_b: Iterable[int]
) -> Iterator[TensorPair]:
    by_key = {b.keys[number]: number for number in left_b}
    for number in left_a:
        if (key := a.keys[number]) in by_key:
            yield TensorPair(number, by_key[key], MatchedBy.EXACT)


def _by_group(
    a: StepTensors,
    b: StepTensors,
    left_a: Iterable[int],
    left_b: Iterable[int],
    *,
    key: GroupKey,
    matched_by: MatchedBy,
) -> Iterator[TensorPair]:
    yield from _in_order(_grouped(a, left_a, key), _grouped(b, left_b, key), matched_by)


def _alone(
    a: StepTensors, b: StepTensors, left_a: Iterable[int], left_b: Iterable[int]
) -> Iterator[TensorPair]:
    """Match tensors that are alone in their scopes: nothing tells several with other shapes apart."""
    groups_b = _grouped(b, left_b, _scope)
    for scope, numbers in _grouped(a, left_a, _scope).items():
        others = groups_b.get(scope, [])
        if len(numbers) == len(others) == 1:
            yield TensorPair(numbers[0], others[0], MatchedBy.ORDER)


def _in_order(groups_a: _Groups, groups_b: _Groups, matched_by: MatchedBy) -> Iterator[TensorPair]:
    for key, numbers in groups_a.items():
        others = groups_b.get(key, [])
        ambiguous = len(numbers) != len(others)
        for a, b in zip(numbers, others, strict=False):
            yield TensorPair(a, b, matched_by, ambiguous)


def _mark_ambiguous(a: StepTensors, b: StepTensors, pairs: Iterable[TensorPair]) -> Iterator[TensorPair]:
    groups: dict[Hashable, list[TensorPair]] = {}
    for pair in pairs:
        if pair.matched_by in _UNAMBIGUOUS:
            yield pair
        else:
            groups.setdefault(_scope(a, pair.a), []).append(pair)
    of_a, of_b = (_grouped(side, range(len(side.keys)), _scope) for side in (a, b))
    for scope, members in groups.items():
        names_a = {a.keys[number].op_name for number in of_a[scope]}
        names_b = {b.keys[number].op_name for number in of_b[scope]}
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


def _grouped(tensors: StepTensors, numbers: Iterable[int], key: GroupKey) -> _Groups:
    groups: _Groups = {}
    for number in numbers:
        if (group := key(tensors, number)) is not None:
            groups.setdefault(group, []).append(number)
    return groups


def _name(tensors: StepTensors, number: int) -> Hashable:
    return tensors.keys[number]._replace(net="", graph="")


def _scope(tensors: StepTensors, number: int) -> tuple[Hashable, ...]:
    key = tensors.keys[number]
    return key.op_type, without_numbers(key.op_name), key.io, key.slot


def _scope_and_shape(tensors: StepTensors, number: int) -> Hashable:
    return *_scope(tensors, number), tensors.shapes[number]


def _spelling(tensors: StepTensors, number: int) -> Hashable:
    """Return a group of parameters, which two versions of a framework may spell differently."""
    key = tensors.keys[number]
    if key.op_type != "Parameter":
        return None
    return _SPELLING.sub("_", key.op_name), key.io, key.slot, key.copy, tensors.shapes[number]


#: How tensors are matched, the surest way first: each looks at those that the ones before it have left.
_MATCHERS: tuple[_Matcher, ...] = (
    _by_key,
    by_model,
    partial(_by_group, key=_name, matched_by=MatchedBy.NAME),
    partial(_by_group, key=_scope_and_shape, matched_by=MatchedBy.ORDER),
    _alone,
    partial(_by_group, key=_spelling, matched_by=MatchedBy.SPELLING),
)


_KEY_FIELDS = ("net", "graph", "op_type", "op_name", "io", "slot", "occurrence", "name")
#: The columns that a condition on compared tensors may name.
COLUMNS = frozenset([*_KEY_FIELDS, *FIELDS, "rank", "step", "dtype", "role"])


def chosen(side: StepTensors, fields: FilterFields) -> list[bool]:
    """Return which tensors conditions choose, (tensor,); all without any.

    Raises:
        UsageError: the conditions are not valid.
    """
    choice = TensorFilter(fields, COLUMNS)
    if not choice.names:
        return [True] * len(side.keys)
    mask = choice.mask({name: _column(side, name) for name in choice.names}, len(side.keys))
    return list(mask.tolist())


def _column(side: StepTensors, name: str) -> Any:
    if name in FIELDS:
        return side.statistics[:, FIELDS.index(name)]
    if name == "role":
        hints = hints_of((key.op_type, key.op_name, key.io, key.slot) for key in side.keys)
        counts = np.array([np.prod(shape, dtype=np.float64) for shape in side.shapes], np.float64)
        return roles_of(hints, counts, [(key.net, key.graph) for key in side.keys])
    if name in ("rank", "step"):
        return getattr(side.key, name)
    values = side.dtypes if name == "dtype" else [getattr(key, name) for key in side.keys]
    return np.array(values, np.int64 if name in ("slot", "occurrence") else object)


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
    for pair in pairs:
        if pair.matched_by.is_of_versions:
            operators = a.keys[pair.a].operator, b.keys[pair.b].operator
            by_operator.setdefault(operators, []).append(pair)
    if not by_operator:
        return {}
    places_a, places_b = _places(a), _places(b)
    names: dict[str, GuessedName] = {}
    for (operator_a, operator_b), members in by_operator.items():
        own, other = [a.keys[pair.a] for pair in members], [b.keys[pair.b] for pair in members]
        same_places = all((n.io, n.slot) == (m.io, m.slot) for n, m in zip(own, other, strict=True))
        is_whole = same_places and len(places_a[operator_a] & places_b[operator_b]) == len(members)
        patterns = _patterns(operator_a, operator_b) if is_whole else None
        for name_a, name_b in (
            [patterns] if patterns else [(n.name, m.name) for n, m in zip(own, other, strict=True)]
        ):
            names.setdefault(name_a, GuessedName(name_a, name_b, members[0].matched_by.value))
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


def with_last_gradients(a: StepTensors, b: StepTensors, pairs: Sequence[TensorPair]) -> list[TensorPair]:
    """Return pairs in which gradients that were added up in other numbers of calls are the last ones.

    Each call dumps the gradient of a parameter again, with its part added: only the last one is whole.
    """
    added = _uneven(a, b, _gradient).values()
    of_a, of_b = ({n for pair in added for n in pair[side]} for side in (0, 1))
    kept = [pair for pair in pairs if pair.a not in of_a and pair.b not in of_b]
    return sorted([*kept, *(TensorPair(own[-1], other[-1], MatchedBy.NAME) for own, other in added)])


def with_same_calls(a: StepTensors, b: StepTensors, pairs: Sequence[TensorPair]) -> list[TensorPair]:
    """Return pairs in which calls that were given the same bytes are the same call.

    Calls are paired by their numbers, which an evaluation between two steps moves, or one call more. What is
    called as often in each of them moves along.
    """
    moved, again = _moved_calls(a, b) if len(pairs) < max(len(a.keys), len(b.keys)) else ({}, set())
    taken = set(moved.values())
    kept = [pair for pair in pairs if pair.a not in again and pair.b not in taken]
    return sorted([*kept, *(TensorPair(number, moved[number], MatchedBy.NAME) for number in moved)])


def _moved_calls(a: StepTensors, b: StepTensors) -> tuple[dict[int, int], set[int]]:
    """Return the counterparts of what was called with the same bytes, and all of A that was called along."""
    uneven = _uneven(a, b, _activation)
    called = [name for name, (own, _) in uneven.items() if is_input(a.keys[own[0]].io)]
    moved: dict[int, int] = {}
    again: set[int] = set()
    while called:
        own, other = uneven[called[0]]
        same = _same_contents([a.contents[n] for n in own], [b.contents[n] for n in other])
        along = [name for name in uneven if _called_along(*uneven[name], own, other)]
        for name in along if same else ():
            again.update(uneven[name][0])
            moved |= _along(*uneven[name], len(uneven[name][0]) // len(own), same)
        called = [name for name in called[1:] if name not in along]
    return moved, again


def _along(a: Sequence[int], b: Sequence[int], each: int, same: Mapping[int, int]) -> dict[int, int]:
    """Return the counterparts of what is called so often in each of some calls, which `same` pairs."""
    return {
        a[call * each + place]: b[other * each + place]
        for call, other in same.items()
        for place in range(each)
    }


def _uneven(a: StepTensors, b: StepTensors, key: GroupKey) -> dict[Hashable, tuple[list[int], list[int]]]:
    """Return what both sides dumped in calls, and not as often."""
    of_a, of_b = (_grouped(side, range(len(side.keys)), key) for side in (a, b))
    return {
        name: (own, of_b[name]) for name, own in of_a.items() if name in of_b and len(own) != len(of_b[name])
    }


def _gradient(tensors: StepTensors, number: int) -> Hashable:
    is_gradient = tensors.parts[number] is StepPart.PARAMETER_GRADIENT
    return tensors.keys[number]._replace(occurrence=0, copy=0) if is_gradient else None


def _activation(tensors: StepTensors, number: int) -> Hashable:
    key, is_activation = tensors.keys[number], tensors.parts[number] is StepPart.ACTIVATION
    is_told = is_activation and not key.op_type.startswith(FUNCTIONS)
    return key._replace(occurrence=0, copy=0) if is_told else None


def _called_along(a: Sequence[int], b: Sequence[int], own: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether something is called as often in each of some calls, on both sides."""
    return len(a) * len(other) == len(b) * len(own) and len(a) % len(own) == 0


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


_UNRECORDED = "nothing of its module is recorded on the other side"
#: What one side may not have recorded at all.
_NOTHING_OF = {
    StepPart.PARAMETER: "no parameter is recorded on the other side",
    StepPart.PARAMETER_GRADIENT: "no gradient of a parameter is recorded on the other side",
}
#: What a recorder calls the whole model.
_ROOT = "model"


def without_effect(
    rows: Sequence[ComparedTensor],
    named: int,
    keys: tuple[Sequence[TensorKey], Sequence[TensorKey]],
    modules: tuple[AbstractSet[str], AbstractSet[str]],
    *,
    is_only_step: bool,
) -> list[ComparedTensor]:
    """Return the rows of a step, with what makes no difference as ignored.

    That is what only one side has, such as recomputed activations, or what is paired by more than names, if
    all else agrees: had it an effect, something would differ. Parameters and their gradients have theirs in
    later steps; one in another form, such as a sparse gradient, is there on both sides. Where one side has
    nothing at all of a module, or no gradients, these were not recorded.

    Args:
        rows: the step's, of equal tensors maybe none.
        named: how many pairs names tell.
        keys: the tensors of A and of B.
        modules: of A and of B that any step so far has; see `modules_of`.
        is_only_step: no other step shows what became of gradients.
    """
    if named < _FEWEST or not all(row.verdict in GOOD for row in rows if is_sure(row)):
        return list(rows)
    parts = [parts_of(of_side) for of_side in keys]
    operators = [{f"{key.op_type}.{key.op_name}" for key in of_side} for of_side in keys]

    recorded = [{*of_side, *([StepPart.PARAMETER_GRADIENT] * is_only_step)} for of_side in parts]

    def is_missing(row: ComparedTensor) -> bool:
        matters = parts[not row.name_a][row.number].is_of_parameter
        operator = row.name.rpartition(f".{row.io}")[0]
        return matters and (row.verdict is Verdict.SHAPE or operator not in operators[bool(row.name_a)])

    def unrecorded(row: ComparedTensor) -> str:
        """Return what of the other side was not recorded; "" if it has what stands beside a tensor."""
        own, other = not row.name_a, bool(row.name_a)
        module = keys[own][row.number].op_name.rpartition(".")[0] or _ROOT
        if row.verdict in UNMATCHED and module in modules[own] and module not in modules[other]:
            return _UNRECORDED
        part = parts[own][row.number]
        return "" if part in recorded[other] else _NOTHING_OF.get(part, "")

    def judged(row: ComparedTensor) -> ComparedTensor:
        if is_sure(row) or row.verdict in GOOD:
            return row
        reason = unrecorded(row)
        if is_missing(row) and not reason:
            return row
        return replace(row, verdict=Verdict.IGNORED, reason=reason or row.reason or _NO_EFFECT)

    return list(map(judged, rows))


def modules_of(keys: Iterable[TensorKey]) -> frozenset[str]:
    """Return the modules that are called or have parameters, and those around them.

    None of a dump that does not tell modules.
    """
    called = {key.op_name for key in keys if key.op_type.startswith("Module.")}
    holding = {key.op_name.rpartition(".")[0] for key in keys if called and is_parameter(key.op_type)}
    return frozenset(
        path for name in called | holding for path in accumulate(name.split("."), "{}.{}".format)
    )


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
    is_cast = row.level == "shown" and row.dtype_a != row.dtype_b  # only in this of all calls
    is_numbered = row.op_type.startswith(FUNCTIONS) and not is_cast
    is_told = not row.guessed and not is_numbered and row.verdict is not Verdict.SHAPE
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
            for known, of_side, number in zip(readers, contents, pair[:2], strict=True):
                known.setdefault(of_side[number], []).append(pair.a)
    differ = {row.number for row in rows if row.verdict is Verdict.DIFFERENT}

    def is_updated(row: ComparedTensor) -> bool:
        own = [of_side[number] for of_side, number in zip(contents, pair_of[row.number][:2], strict=True)]
        read = [known.get(content, []) for known, content in zip(readers, own, strict=True) if any(content)]
        return any(numbers and differ.isdisjoint(numbers) for numbers in read)

    return [
        replace(row, verdict=Verdict.IGNORED, reason=_UPDATED)
        if row.number in differ and is_parameter(row.op_type) and is_updated(row)
        else row
        for row in rows
    ]
