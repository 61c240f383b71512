"""Calls are told apart by graph, name and occurrence."""

from pathlib import Path

from tests.dumps import DumpLibrary
from tests.origin_runs import origin_of


def test_statistics_alone_are_enough(dumps: DumpLibrary, store: Path) -> None:
    """msProbe's statistics become NaN and do not count it; the stack names the line."""
    answer = origin_of(dumps["msprobe-26.2.0-pytorch-cpu"] / "statistics", store)
    assert (answer.op_type, answer.how) == ("Torch.where", "came in")
    assert answer.came_in == "Torch.where.Torch.where.0.forward.input.2"
    assert answer.source is not None
    assert "float('nan')" in answer.source.code
