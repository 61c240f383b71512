"""A layout that the user declares."""

from pathlib import Path

import numpy as np
import pytest

from ingest.layouts.declared import declare
from ingest.layouts.detect import find_dump
from ingest.planning.inspection import inspect
from ingest.planning.plan import plan_rows
from tests.npy_files import npy_bytes
from workers.errors import UsageError
from workers.model import StepKey


def make(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(npy_bytes(np.zeros(2, np.float32)))


def named(root: Path, layout: str) -> dict[StepKey, list[tuple[str, str, int]]]:
    tree = find_dump(root, layout=layout)
    found = {}
    for listing in tree.scan({}).listings:
        names = [file.name for file in tree.describe(listing).named.values() if file.name is not None]
        found[listing.key] = [(name.op_name, name.io, name.slot) for name in names]
    return found


def test_rank_and_step_of_directories(tmp_path: Path) -> None:
    make(tmp_path, "rank0/step7/fc.1.out.2.npy", "rank1/step7/fc.1.grad.0.npy", "rank1/step7/odd.npy")
    assert named(tmp_path, "rank{rank}/step{step}/{module}.{io}.{slot}.npy") == {
        StepKey(0, 7): [("fc.1", "output", 2)],
        StepKey(1, 7): [("fc.1", "output", 0), ("odd", "output", 0)],
    }


def test_parameters_and_gradients_of_modules_that_are_called_so(tmp_path: Path) -> None:
    make(
        tmp_path,
        *(f"rank0/step0/{name}.output.0.npy" for name in ("grad.fc.weight", "param.fc.weight", "fc")),
    )
    tree = find_dump(tmp_path, layout="rank{rank}/step{step}/{module}.{io}.{slot}.npy")
    (listing,) = tree.scan({}).listings
    rows = plan_rows(inspect(tree.root, listing, tree.describe(listing), set(), {}))
    assert [(row.entry.name.op_type, row.entry.name.op_name) for row in rows] == [
        ("Module.fc", "fc"),
        ("Parameter", "fc.weight"),
        ("Gradient", "fc.weight"),
    ]


def test_rank_and_step_of_files(tmp_path: Path) -> None:
    make(tmp_path, "a_rank0_step1.npy", "b_rank0_step1.npy", "a_rank1_step1.npy", "other.txt")
    assert named(tmp_path, "{module}_rank{rank}_step{step}.npy") == {
        StepKey(0, None): [],
        StepKey(0, 1): [("a", "output", 0), ("b", "output", 0)],
        StepKey(1, 1): [("a", "output", 0)],
    }


@pytest.mark.parametrize("text", ["{module}.pt", "rank{rank}/{step:[}/{module}.pt", "a/b"])
def test_pattern_that_tells_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--layout"):
        declare(text)


TWO = "rank{rank}/step{step}/{module}.npy; {net:reference}/{module}.npy"


def test_tensor_files_that_fit_no_pattern_are_reported(tmp_path: Path) -> None:
    """Directories of other files, and what another layout covers, are not."""
    make(tmp_path, "rank0/step0/fc.npy", "odd/more/x.npy", "rank_1/Net/0/3/a.0.0.0.0.output.0.ND.npy")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "job.log").touch()
    problems = find_dump(tmp_path, layout="rank{rank}/step{step}/{module}.npy").scan({}).problems
    assert [(problem.path, problem.left_out) for problem in problems] == [("odd", True)]
    assert "add a pattern behind a semicolon" in problems[0].hint
    assert find_dump(tmp_path, layout=f"{TWO}; odd/more/{{module}}.npy").scan({}).problems == ()


def layouts_of(root: Path, layout: str) -> dict[StepKey, str]:
    return {listing.key: listing.layout for listing in find_dump(root, layout=layout).scan({}).listings}


def test_pattern_comes_before_layouts_whose_directories_have_the_same_names(tmp_path: Path) -> None:
    """`step1/rank0` is how msProbe names a step: it would keep the tensors as files."""
    make(tmp_path, "step1/rank0/fc.output.npy", "step1/rank0/odd.npy")
    assert named(tmp_path, "step{step}/rank{rank}/{module}.{io}.npy") == {
        StepKey(0, 1): [("fc", "output", 0), ("odd", "output", 0)]
    }


def test_directories_of_any_name_take_no_dump_of_a_known_system(tmp_path: Path) -> None:
    make(tmp_path, "mine/3/fc.npy")
    (tmp_path / "20240101000000" / "5").mkdir(parents=True)
    (tmp_path / "20240101000000" / "5" / "Add.add.1.2.1700000000000000").touch()
    assert layouts_of(tmp_path, "{net}/{step}/{module}.npy") == {
        StepKey(0, 3): "declared",
        StepKey(5, None): "cann",
    }


def test_file_that_fits_no_name_is_named_behind_its_directories(tmp_path: Path) -> None:
    """Otherwise the files of all modules would have one name."""
    make(tmp_path, "a/rank0/step1/fc/out.npy", "a/rank0/step1/fc/x2.npy", "b/rank0/step1/fc/x2.npy")
    tree = find_dump(tmp_path, layout="{net}/rank{rank}/step{step}/{module}/{io}.npy")
    (listing,) = tree.scan({}).listings
    names = [file.name for file in tree.describe(listing).named.values() if file.name is not None]
    assert [(name.net, name.op_name) for name in names] == [("a", "fc"), ("a", "fc.x2"), ("b", "fc.x2")]
