"""Which of the graphs that one step ran is the one that trains.

A TensorFlow job on Ascend runs several graphs in one session (initialisation, input pipeline, training), and
each has a folder of its own, called `model_name`, in a dump. The vendor's advice is to take the one that is
named like the computational graph: that of a `ge_proto_*_Build.txt` (`DUMP_GE_GRAPH=2`) with an iterator.
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
    """Which graph of a step trains, and why it is taken for that."""

    name: str | None
    """The folder, by its name in the dump (`Tensor.net`); None where nothing tells."""
    rule: str
    """How that was found."""
    candidates: Mapping[str, int]
    """All graphs of the step, with the number of their tensors."""


@dataclass(frozen=True, slots=True)
class BuiltGraph:
    """What a `ge_proto_*_Build.txt` says."""

    name: str
    has_iterator: bool


def parse_built_graph(data: bytes) -> BuiltGraph | None:
    """Return the name of the graph in a text dump of GE, or None where it has none."""
    found = _NAME.search(data)
    if found is None:
        return None
    return BuiltGraph(found[1].decode("utf-8", "replace"), _ITERATOR.search(data) is not None)


def parse_dumped_models(data: bytes) -> list[str]:
    """Return the models that an ACL dump configuration asks for; empty where it names none.

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
    names = [one.get("model_name") for one in chosen[:_MAX_MODELS] if isinstance(one, dict)]
    return [name for name in names if isinstance(name, str) and name]


def choose_training_graph(
    candidates: Mapping[str, int], built: Iterable[BuiltGraph] = (), asked: Iterable[str] = ()
) -> TrainingGraph:
    """Choose the graph that trains.

    Args:
        candidates: the graphs of a step by the names of their folders, with the number of their tensors.
        built: the graphs that GE has written down.
        asked: the models that the dump configuration names.

    Returns:
        The only candidate; else the one that a built graph with an iterator is named like, or any built
        graph, or the one that the configuration names; each only where there is just one. Failing that the
        one with the most tensors, and none where two have as many.
    """
    if len(candidates) == 1:
        return TrainingGraph(next(iter(candidates)), "the only graph of the step", candidates)
    built = list(built)
    rules = (
        ("named like the built graph with an iterator", [one.name for one in built if one.has_iterator]),
        ("named like the only built graph of the step", [one.name for one in built]),
        ("the only graph that the dump configuration names", asked),
    )
    for rule, names in rules:
        spelt = {flatten(name) for name in names}
        found = [name for name in candidates if flatten(name) in spelt]
        if len(found) == 1:
            return TrainingGraph(found[0], rule, candidates)
    most = max(candidates.values(), default=0)
    largest = [name for name, tensors in candidates.items() if tensors == most]
    if len(largest) == 1:
        return TrainingGraph(largest[0], "the graph with the most tensors", candidates)
    return TrainingGraph(None, "nothing tells them apart" if candidates else "no graph", candidates)
