"""Find the training graph among the graphs that ran in one step.

A TensorFlow job on Ascend runs several graphs in one session (initialisation, input pipeline, training). Each
has its own folder, called `model_name`, in a dump. The vendor's advice is to choose the one with the name of
the computational graph: that of a `ge_proto_*_Build.txt` (`DUMP_GE_GRAPH=2`) with an iterator.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ingest.reader.context.match import flatten

_NAME = re.compile(rb'^\s{0,4}name:\s*"([^"\n]{1,1000})"', re.MULTILINE)
_ITERATOR = re.compile(rb'(?:op|type):\s*"(?:Iterator\w{0,40}|GetNext\w{0,40})"')
_MAX_MODELS = 1000


@dataclass(frozen=True, slots=True)
class TrainingGraph:
    """The training graph of a step, and the rule by which it was chosen."""

    name: str | None
    """The name of its folder in the dump (`Tensor.net`); None if no rule decides."""
    rule: str
    """The rule, in words."""
    candidates: Mapping[str, int]
    """All graphs of the step, with the number of their tensors."""


@dataclass(frozen=True, slots=True)
class BuiltGraph:
    """The content of a `ge_proto_*_Build.txt`."""

    name: str
    has_iterator: bool


def parse_built_graph(data: bytes) -> BuiltGraph | None:
    """Parse the text dump of a graph by GE; return None if it does not have a name."""
    name = _NAME.search(data)
    if name is None:
        return None
    return BuiltGraph(name[1].decode("utf-8", "replace"), _ITERATOR.search(data) is not None)


def parse_dumped_models(data: bytes) -> list[str]:
    """Return the models whose dump an ACL configuration requests; an empty list if it does not name any.

    `{"dump": {"dump_list": [{"model_name": "...", "layer": [...]}], ...}}`
    """
    try:
        content = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return []
    settings = content.get("dump") if isinstance(content, dict) else None
    chosen = settings.get("dump_list") if isinstance(settings, dict) else None
    if not isinstance(chosen, list):
        return []
    names = [entry.get("model_name") for entry in chosen[:_MAX_MODELS] if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str) and name]


def choose_training_graph(
    candidates: Mapping[str, int], built: Iterable[BuiltGraph] = (), asked: Iterable[str] = ()
) -> TrainingGraph:
    """Choose the graph that trains.

    The rules, in this order: the only candidate; the only one with the name of a built graph that has an
    iterator; the only one with the name of any built graph; the only one that the configuration names; the
    one with the most tensors, unless several have as many.

    Args:
        candidates: the number of tensors of each graph of a step, by the name of its folder.
        built: the graphs that GE wrote as text.
        asked: the models that the dump configuration names.
    """
    if len(candidates) == 1:
        return TrainingGraph(next(iter(candidates)), "the only graph of the step", candidates)
    built = list(built)
    rules = (
        (
            "named like the built graph with an iterator",
            [graph.name for graph in built if graph.has_iterator],
        ),
        ("named like the only built graph of the step", [graph.name for graph in built]),
        ("the only graph that the dump configuration names", asked),
    )
    for rule, names in rules:
        if (name := _only_match(candidates, names)) is not None:
            return TrainingGraph(name, rule, candidates)
    most = max(candidates.values(), default=0)
    largest = [name for name, tensors in candidates.items() if tensors == most]
    if len(largest) == 1:
        return TrainingGraph(largest[0], "the graph with the most tensors", candidates)
    return TrainingGraph(None, "nothing tells them apart" if candidates else "no graph", candidates)


def _only_match(candidates: Iterable[str], names: Iterable[str]) -> str | None:
    """Return the candidate with one of these names, in either spelling; None if none or several have."""
    flat = {flatten(name) for name in names}
    matches = [name for name in candidates if flatten(name) in flat]
    return matches[0] if len(matches) == 1 else None
