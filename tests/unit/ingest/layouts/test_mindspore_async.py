"""The tree of MindSpore's first asynchronous dumps."""

from pathlib import Path

from ingest.layouts.detect import find_dump
from workers.model import StepKey


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
