"""The tree of MindSpore's first asynchronous dumps."""

from pathlib import Path

import pytest

from ingest.layouts.base import Place
from ingest.layouts.detect import find_dump
from ingest.layouts.mindspore import MindSporeAsync
from workers.dump.model import TensorName
from workers.model import SourceFile, StepKey


@pytest.mark.parametrize("device", ["3", "device_3"])
def test_the_first_asynchronous_dumps_of_mindspore_are_found(device: str) -> None:
    wanted = {"device": "3", "net": "Net_graph_a", "root_graph": "0", "graph": "1", "iteration": "5"}
    matches = [pattern.match_path(f"{device}/Net_graph_a_graph_0/1/5") for pattern in MindSporeAsync.patterns]
    assert [fields for fields in matches if fields is not None] == [wanted]
    place = Place(f"{device}/Net_graph_a_graph_0/1/5", wanted)
    files = [SourceFile(f"{place.path}/Add.Add-op1.0.1.17", 10, 0)]
    (named,) = MindSporeAsync().describe(place, files, lambda _: None).named.values()
    assert named.name == TensorName("Net_graph_a", "1", "Add", "Add-op1", task=0, stream=1, timestamp=17)


def test_step_of_a_whole_tree_is_the_iteration(tmp_path: Path) -> None:
    """Found among all layouts, with device, net and graph from the path."""
    for iteration in (4, 5):
        place = tmp_path / f"dump/device_3/Net_graph_1/2/{iteration}"
        place.mkdir(parents=True)
        (place / "Add.Add-op1.0.1.17").write_bytes(b"x")
    dump = find_dump(tmp_path)
    listings = dump.scan({}).listings
    assert [(listing.key, listing.layout) for listing in listings] == [
        (StepKey(3, 4), "mindspore_async"),
        (StepKey(3, 5), "mindspore_async"),
    ]
    (named,) = dump.describe(listings[0]).named.values()
    assert named.name is not None
    assert (named.name.net, named.name.graph) == ("Net", "2")
