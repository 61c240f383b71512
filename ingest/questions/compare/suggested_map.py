"""A mapping file made of guesses, for `--map`: to be read, corrected and used again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from ingest.questions.compare.mapping import WILD
from ingest.questions.compare.matching import MatchedBy, TensorPair
from ingest.questions.compare.result import GuessedName
from ingest.questions.compare.step_tensors import StepTensors
from workers.store.consolidated.blocks import OperatorKey

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
