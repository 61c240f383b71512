"""Which tensor a URL names."""

from __future__ import annotations

import difflib

from ingest.page.arguments import Arguments
from ingest.page.moment import Moment
from ingest.reader.tensor import Tensor
from workers.errors import UsageError


def tensor_of(moment: Moment, asked: Arguments) -> Tensor:
    """Return the tensor of a rank, step, name and, if several graphs have the name, graph.

    Raises:
        UsageError: the rank, step or tensor does not exist.
        DamagedStore: the index of the step is damaged.
    """
    name, graph = asked.text("name"), asked.text("graph")
    opened = moment.opened(asked.need("rank"), asked.integer("step"))
    tensors = opened.tensors()
    for tensor in tensors:
        if tensor.name == name and graph in ("", tensor.graph):
            return tensor
    similar = difflib.get_close_matches(name, [tensor.name for tensor in tensors[:5000]], n=3, cutoff=0.4)
    raise UsageError(
        f"{opened.key} has no tensor {name!r}", hint=f"Similar: {', '.join(similar)}" if similar else None
    )
