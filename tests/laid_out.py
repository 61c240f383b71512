"""Runs whose ranks hold the tensors of a net in a layout, and the answer of `layout` about them."""

from collections.abc import Callable
from pathlib import Path

import ingest
from ingest.questions.placement.layout_answer import RunLayout
from tests.sharded_net import LAYOUT, Dump, write
from tests.stores import ingest_directly

Lay = Callable[..., RunLayout]


def layout_of(root: Path, steps: list[list[Dump]]) -> RunLayout:
    """Ingest what ranks hold in each step, and ask for the layout."""
    write(root / "dump", steps)
    ingest_directly(root / "dump", root / "store", layout=LAYOUT)
    return ingest.layout(ingest.open_store(root / "store"))
