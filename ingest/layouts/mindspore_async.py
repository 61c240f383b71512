"""Family B in the trees of MindSpore 1.1 and 1.2: asynchronous dumps on Ascend.

    {device}/{net}_graph_{root_graph}/{graph}/{iteration}/          as the documents say
    device_{device}/{net}_graph_{root_graph}/{graph}/{iteration}/   as data_dumper.cc does

Later releases write the same files into the tree of `ingest.layouts.mindspore`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingest.layouts.base import Description, Place, ReadSmall, System
from ingest.layouts.cann import describe_files
from ingest.layouts.pattern import Pattern, parse
from workers.model import SourceFile

_MODEL = r"{net}_graph_{root_graph:\d{1,18}}!/{graph:\d{1,18}}/{iteration}"


class MindSporeAsync:
    """The tree of MindSpore's first asynchronous dumps."""

    name = "mindspore_async"
    patterns: Sequence[Pattern] = (parse(f"{{device}}/{_MODEL}"), parse(f"device_{{device}}/{_MODEL}"))
    systems: Sequence[System] = (
        System("MindSpore 1.1 and 1.2, asynchronous, as documented", "3/Net_graph_1/1/8", "DumpData"),
        System("MindSpore 1.1 and 1.2, asynchronous", "device_3/Net_graph_1/1/8", "DumpData"),
    )
    evidence = None
    transient: Sequence[Pattern] = ()

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
        """Tell what the files of one place are; see `Layout.describe`."""
        return describe_files(files, read, net=place.fields["net"], graph=place.fields["graph"])
