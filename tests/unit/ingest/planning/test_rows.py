"""Rows of the index: what each file is, in order of execution."""

from pathlib import Path

from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import plan_all


def test_dumps_of_one_operator_are_numbered_in_order_of_time(made: MadeDump, tmp_path: Path) -> None:
    """A `while` loop dumps its operators again and again; only the timestamp tells which came first."""
    files = [tensor_name("Less.loop", time=time) for time in (30, 4, 200)]
    for file in files:
        made.add(b"", file)
    made.add(b"", tensor_name("Less.loop", slot=1, time=100))
    (plan,) = plan_all(made.root, tmp_path / "run.zarr")
    names = {entry.source.path.rsplit("/", 1)[-1]: entry.name for entry in plan.entries}
    assert [names[file].occurrence for file in files] == [1, 0, 2]
