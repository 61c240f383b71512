"""Asynchronous dumps of MindSpore 1.1 and 1.2 on Ascend.

    {device}/{net}_graph_{root_graph}/{graph}/{iteration}/          by the documentation
    device_{device}/{net}_graph_{root_graph}/{graph}/{iteration}/   by data_dumper.cc

Later releases write the same files into the tree of `ingest.layouts.mindspore`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingest.layouts.base import Description, Layout, Place, ReadSmall, System
from ingest.layouts.cann import describe_files
from ingest.layouts.pattern import parse
from workers.model import SourceFile

_MODEL = r"{net}_graph_{root_graph:\d{1,18}}!/{graph:\d{1,18}}/{iteration}"


class MindSporeAsync(Layout):
    """The tree of MindSpore's first asynchronous dumps."""

    name = "mindspore_async"
    patterns = (parse(f"{{device}}/{_MODEL}"), parse(f"device_{{device}}/{_MODEL}"))
    systems = (
        System("MindSpore 1.1 and 1.2, asynchronous, as documented", "3/Net_graph_1/1/8", "DumpData"),
        System("MindSpore 1.1 and 1.2, asynchronous", "device_3/Net_graph_1/1/8", "DumpData"),
    )

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
        """Describe the files of one place; see `Layout.describe`."""
        return describe_files(files, read, net=place.fields["net"], graph=place.fields["graph"])
