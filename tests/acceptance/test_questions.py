"""What a store answers, held against the truth about a dump with known NaN."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli import run
from tests.dumps import DumpLibrary
from tests.in_process import run_here
from tests.servers.cluster import DaskCluster

pytestmark = pytest.mark.dask

STEP_KEYS = {
    "rank": int,
    "step": (int, type(None)),
    "fingerprint": str,
    "status": str,
    "tensors": int,
    "files": int,
    "quarantined": int,
    "overflows": int,
    "statistics_only": int,
    "disagreements": int,
    "unparsed": int,
    "duplicates": int,
    "raw_bytes": int,
    "stored_bytes": int,
    "objects": int,
    "nan_count": int,
    "pos_inf_count": int,
    "neg_inf_count": int,
    "nan_tensors": int,
    "pos_inf_tensors": int,
    "neg_inf_tensors": int,
    "anomalous_tensors": int,
    "rules": str,
    "findings": int,
    "skipped": int,
    "tensor_problems": int,
    "problems": int,
}
WHERE_FROM_KEYS = {
    "committed_at": str,
    "layout": str,
    "host": str,
    "root": str,
    "rank_from": str,
    "generations": int,
    "has_tensors": bool,
    "coordinates": dict,
}
NUMBER = (int, float, type(None))
TENSOR_KEYS = {
    "rank": int,
    "step": int,
    "name": str,
    "net": str,
    "graph": str,
    "op_type": str,
    "op_name": str,
    "full_name": str,
    "io": str,
    "slot": int,
    "occurrence": int,
    "role": str,
    "timestamp": int,
    "format": str,
    "dtype": str,
    "declared_dtype": str,
    "shape": list,
    "device_shape": (list, type(None)),
    "nbytes": int,
    "digest": str,
    "source": str,
    "statistics_from": str,
    "is_dumped": bool,
    "problem": str,
    "count": int,
    "nan_count": int,
    "pos_inf_count": int,
    "neg_inf_count": int,
    "zero_count": int,
    "negative_count": int,
    "positive_count": int,
    "min": NUMBER,
    "max": NUMBER,
    "mean": NUMBER,
    "std": NUMBER,
    "l2_norm": NUMBER,
}
OPERATOR_KEYS = {
    "source_line": (dict, type(None)),
    "stack": list,
    "operator": (str, type(None)),
    "candidates": list,
    "position": (int, type(None)),
    "parent": (str, type(None)),
    "kernel_args": (dict, type(None)),
    "fused_from": list,
}
ELEMENT_KEYS = {
    "producers": list,
    "consumers": list,
    "operands": list,
    "quantization": (dict, type(None)),
    "anatomy": dict,
    "histogram": (dict, type(None)),
    "at": (str, type(None)),
    "values": list,
}
FILE_KEYS = {
    "rank": int,
    "step": (int, type(None)),
    "source": str,
    "kind": str,
    "nbytes": int,
    "digest": str,
    "problem": str,
}


def assert_flat(rows: list[dict[str, Any]], keys: dict[str, Any]) -> None:
    assert rows
    for row in rows:
        assert list(row) == list(keys)
        assert all(isinstance(row[name], kind) for name, kind in keys.items()), row


@pytest.fixture(scope="module")
def dump(dumps: DumpLibrary) -> Path:
    return dumps["nan-log-2rank"] / "dump"


@pytest.fixture(scope="module")
def truth(dumps: DumpLibrary) -> dict[str, dict[str, Any]]:
    """By file: shape, size, and how many elements are NaN or infinite, where any is."""
    files: dict[str, dict[str, Any]] = json.loads((dumps["nan-log-2rank"] / "truth.json").read_text())[
        "files"
    ]
    return files


@pytest.fixture(scope="module")
def store(dump: Path, cluster: DaskCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("questions") / "run.zarr"
    done = run("ingest", dump, "--store", path, "--scheduler", cluster.address, "--json")
    assert_flat(done.json, STEP_KEYS)
    return path


def test_ls_counts_what_the_dump_holds(store: Path, truth: dict[str, dict[str, Any]]) -> None:
    """One row for each rank and step, whose NaN are those of the truth."""
    rows = run_here("ls", store, "--json").json
    assert_flat(rows, {**STEP_KEYS, **WHERE_FROM_KEYS})
    found = {(row["rank"], row["step"]): row for row in rows}
    assert list(found) == [(0, None), (1, None), *((rank, step) for step in (1, 2, 3) for rank in (0, 1))]
    for (rank, step), row in found.items():
        true = [file for name, file in truth.items() if name.startswith(f"rank_{rank}/Mlp/0/{step}/")]
        assert row["nan_count"] == sum(file["nan"] for file in true)
        assert row["nan_tensors"] == sum(file["nan"] > 0 for file in true)
        assert row["tensors"] == (0 if step is None else 243)
        assert row["generations"] == 1


def test_ls_lists_tensors_and_files(store: Path, dump: Path) -> None:
    """Every file of the dump is in one of the two lists, and nothing is a problem."""
    tensors = run_here("ls", store, "--tensors", "--json").json
    files = run_here("ls", store, "--files", "--json").json
    assert_flat(tensors, TENSOR_KEYS)
    assert_flat(files, FILE_KEYS)
    listed = [row["source"] for row in [*tensors, *files]]
    assert sorted(listed) == sorted(str(p.relative_to(dump)) for p in dump.rglob("*") if p.is_file())
    assert run_here("ls", store, "--problems", "--json").json == []


def test_find_names_exactly_the_tensors_with_nan(store: Path, truth: dict[str, dict[str, Any]]) -> None:
    """The first row answers which rank, step and operator went wrong first."""
    found = run_here("find", store, "--where", "nan_count > 0", "--json").json
    assert_flat(found, TENSOR_KEYS)
    assert {row["source"] for row in found} == truth.keys()
    for row in found:
        true = truth[row["source"]]
        assert (row["nan_count"], row["shape"], row["count"]) == (true["nan"], true["shape"], true["size"])
    assert (found[0]["rank"], found[0]["step"], found[0]["op_type"], found[0]["io"]) == (
        1,
        2,
        "Log",
        "output",
    )
    assert [row["step"] for row in found] == sorted(row["step"] for row in found)

    [first] = run_here("find", store, "--where", "nan_count > 0", "--limit", 1, "--json").json
    assert first == found[0]


def test_find_for_people_is_one_line_a_tensor(store: Path) -> None:
    """Data on stdout, talk on stderr; a condition that nothing fulfils is no error."""
    found = run_here("find", store, "--op-type", "Log", "--io", "output", "--rank", 1)
    assert len(found.stdout.splitlines()) == 1 + 3
    assert all("Log." in line for line in found.stdout.splitlines()[1:])
    assert run_here("find", store, "--where", "nan_count > 1e9", "--json").json == []


def test_show_gives_the_values(store: Path, dump: Path, truth: dict[str, dict[str, Any]]) -> None:
    """One tensor, by a name as `find` prints it or by a glob."""
    row = run_here("show", store, "Log.*.output.0", "--rank", 1, "--step", 2, "--json").json
    assert_flat([row], {**TENSOR_KEYS, **OPERATOR_KEYS, **ELEMENT_KEYS})
    assert row["source"] in truth
    values = np.load(dump / row["source"])
    assert row["min"] == np.nanmin(values)
    assert row["max"] == np.nanmax(values)

    shown = run_here("show", store, row["name"], "--rank", 1, "--step", 2).stdout
    assert str(values) in shown


def test_show_says_what_is_close(store: Path) -> None:
    """A name that does not fit, or fits too much, is answered with names that do."""
    missing = run_here("show", store, "Log.Default_net-LogLos_Log-op0.output.0", "-r", 1, "-n", 2, code=2)
    assert "Log.Default_net-LogLoss_Log-op0.output.0" in missing.stderr
    several = run_here("show", store, "*Log*", "--rank", 1, "--step", 2, code=2)
    assert several.stderr.count("graph 0") > 1


def test_export_takes_what_a_condition_selects(store: Path, dump: Path, tmp_path: Path) -> None:
    """The three tensors in question, and no other file."""
    run_here(
        "export", store, tmp_path, "--rank", 1, "--step", 2, "--where", "nan_count > 0 and op_type == 'Neg'"
    )
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 2
    assert all(path.read_bytes() == (dump / path.relative_to(tmp_path)).read_bytes() for path in files)


def test_store_may_be_named_in_the_environment(store: Path) -> None:
    """Commands that read need no argument then."""
    named = run_here("ls", "--json", env={"DUMP_INGEST_STORE": str(store)})
    assert len(named.json) == 8


def test_verify_names_damage_and_exits_with_3(store: Path, tmp_path: Path) -> None:
    """A flipped bit, a lost shard and a cut one are each named, and undamaged steps are not."""
    damaged = Path(shutil.copytree(store, tmp_path / "run.zarr"))
    flipped, lost, cut = (
        next(damaged.glob(f"rank_{rank}/step_{step}/*/tensors/float32/c/0"))
        for rank, step in ((0, 1), (0, 2), (1, 3))
    )
    data = bytearray(flipped.read_bytes())
    data[len(data) // 3] ^= 0x10
    flipped.write_bytes(data)
    lost.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])

    damages = run_here("verify", damaged, "--json", code=3).json

    assert_flat(damages, {"rank": int, "step": int, "source": str, "reason": str})
    assert {(row["rank"], row["step"]) for row in damages} == {(0, 1), (0, 2), (1, 3)}
    assert all(row["reason"] for row in damages)
    assert run_here("verify", damaged, "--rank", 1, "--step", 1, "--json").json == []
    exported = run_here("export", damaged, tmp_path / "back", "--rank", 0, "--step", 1, code=3)
    assert "not exported" in exported.stderr
