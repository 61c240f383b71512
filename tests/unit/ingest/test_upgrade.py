"""Stores of earlier versions stay readable; a store of a later version is refused, and left as it is."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import ingest
from ingest.cli.app import COMMANDS, app
from ingest.cli.exits import exit_code_of
from tests import checker
from tests.dumps import unpack
from workers.errors import StoreFormatError
from workers.store import commit, metadata, table_codec
from workers.store.opening import open_objects, resolve

#: By dump: what was ingested into the one store. Made by version 0.1.0 with the rules that are built in.
DUMPS = ("run", "torchair", "stats", "acl")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Statistics without tensors, an overflow, quarantined files, device layouts, findings, and the view."""
    return unpack("store-format-2", tmp_path_factory.mktemp("old"))


@pytest.fixture
def old(packed: Path, tmp_path: Path) -> Path:
    """The store, for this test alone."""
    return Path(shutil.copytree(packed / "store.zarr", tmp_path / "store.zarr"))


def say(*words: object) -> Any:
    """Run a command in this process, and return its JSON."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exception is None, result.exception
    return json.loads(result.stdout)


def test_old_store_is_listed_and_searched(packed: Path) -> None:
    store = packed / "store.zarr"
    rows = {(row["rank"], row["step"]): row for row in say("ls", store, "--json")}
    assert sorted(rows, key=str) == [(0, 1), (0, 2), (0, 3), (0, 4), (0, None), (1, 0), (1, 1), (1, 2)]
    assert rows[0, 2]["status"] == "partial"
    assert rows[1, 0]["overflows"] == 1
    assert rows[0, 4]["statistics_only"] == 3
    tensors = say("find", store, "--where", "nan_count > 0", "--json")
    assert {(row["rank"], row["step"]) for row in tensors} == {(1, 2)}
    assert len(tensors) == 5
    assert ingest.origin(ingest.open_store(store)).to_dict()
    assert len(ingest.anomalies(ingest.open_store(store), rule="nan").findings) == 5


def test_old_store_gives_every_file_back(packed: Path, tmp_path: Path) -> None:
    """Byte for byte; the quarantined ones, too."""
    sources = {
        str(path.relative_to(packed / name)): path.read_bytes()
        for name in DUMPS
        for path in (packed / name).rglob("*")
        if path.is_file()
    }
    store = ingest.open_store(packed / "store.zarr")
    assert list(store.verify()) == []
    for step in store.select():
        assert all(not file.problem for file in step.export(tmp_path / "out"))
    exported = {
        str(path.relative_to(tmp_path / "out")): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert exported == sources


def test_old_store_is_read_by_the_view_and_by_another_reader(packed: Path) -> None:
    store = ingest.open_store(packed / "store.zarr")
    view = store.consolidated()
    assert sorted(view.steps.tolist()) == [0, 1, 2, 3, 4]
    tensors = store.tensors(rank=1, step=2)
    assert sum(int(np.isnan(tensor.read()).sum()) for tensor in tensors if tensor.statistics.nan_count) > 0
    assert len(checker.leaves(packed / "store.zarr")) == 8


def test_old_view_is_brought_up_to_date(old: Path) -> None:
    assert not ingest.consolidate(old, check=True).findings
    assert ingest.consolidate(old, rebuild=True)
    assert list(ingest.open_store(old).verify()) == []


def newer(store: Path) -> None:
    root = json.loads((store / "zarr.json").read_text())
    root["attributes"]["dump_ingest"]["format_version"] = metadata.FORMAT_VERSION + 1
    (store / "zarr.json").write_text(json.dumps(root))


#: What each command is given, with STORE for the store. None: it opens no store.
WORDS: dict[str, list[str] | None] = {
    "anomalies": ["STORE"],
    "check": None,
    "compare": ["STORE", "STORE"],
    "config": None,
    "consolidate": ["STORE"],
    "divergence": ["STORE"],
    "doctor": None,
    "export": ["STORE", "OUT"],
    "find": ["STORE"],
    "gc": ["STORE"],
    "heatmap": ["STORE", "x"],
    "ingest": ["DUMP", "--store", "STORE"],
    "layout": ["STORE"],
    "localize": ["STORE@0,1", "STORE@1,1"],
    "ls": ["STORE"],
    "next": ["STORE"],
    "origin": ["STORE"],
    "outliers": ["STORE"],
    "precision": ["STORE"],
    "quantiles": ["STORE"],
    "repair": ["STORE"],
    "report": ["STORE", "--out", "OUT"],
    "rules": ["test", "STORE"],
    "serve": ["STORE", "--listen", "127.0.0.1:0"],
    "show": ["STORE", "x", "-r", "0", "-n", "1"],
    "sketch": ["STORE"],
    "trampled": ["STORE"],
    "trend": ["STORE", "x"],
    "verify": ["STORE"],
    "wait": ["STORE", "--until", "idle", "--timeout", "1"],
    "watch": ["DUMP", "--store", "STORE", "--metrics", ""],
}


def _placed(word: str, places: dict[str, str]) -> str:
    """Return a word of a command with the path that its name, before a rank and step, stands for."""
    name, at, choice = word.partition("@")
    return places.get(name, name) + at + choice


@pytest.fixture(scope="module")
def later_store(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of a later version, which every command is to leave alone."""
    store = Path(shutil.copytree(packed / "store.zarr", tmp_path_factory.mktemp("later") / "store.zarr"))
    newer(store)
    return store


@pytest.mark.parametrize("command", sorted(listed.name for listed in COMMANDS))
def test_newer_store_is_refused_and_left_alone(
    command: str, later_store: Path, packed: Path, tmp_path: Path
) -> None:
    if command not in WORDS:
        pytest.fail(f"say in this test how {command} is called")
    words = WORDS[command]
    if words is None:
        return
    before = checker.versions(later_store)
    places = {"STORE": str(later_store), "OUT": str(tmp_path / "out"), "DUMP": str(packed / "run")}
    result = CliRunner().invoke(app, [command, *(_placed(word, places) for word in words)])
    assert isinstance(result.exception, StoreFormatError), (result.exception, result.output)
    assert exit_code_of(result.exception) == 1
    assert "store format 3" in result.exception.message
    assert "Upgrade" in result.exception.hint
    assert checker.versions(later_store) == before
    assert not (tmp_path / "out").exists()


def test_what_a_later_version_adds_is_passed_over(old: Path, tmp_path: Path) -> None:
    """Fields of the record, columns of the tables, nodes of the generation."""
    objects = open_objects(resolve(str(old)))
    root = json.loads((old / "zarr.json").read_text())
    root["attributes"]["dump_ingest"]["signed_by"] = {"name": "later"}
    (old / "zarr.json").write_text(json.dumps(root))
    for key in commit.list_keys(objects):
        leaf = old / key.path / "zarr.json"
        document = json.loads(leaf.read_text())
        record = document["attributes"]["dump_ingest"]
        record["signed_by"] = ["later"]
        record["summary"]["later_count"] = {"of": "something"}
        record["source"]["later"] = "x"
        prefix = record["fingerprint"]
        for path, kind, value in (
            ("index/labels", "string", "later"),
            ("index/numbers", "int64", 7),
            ("statistics", "float64", 0.5),
        ):
            node = document["consolidated_metadata"]["metadata"][f"{prefix}/{path}"]
            rows, columns = node["shape"]
            chunk = old / key.path / prefix / path / "c/0/0"
            table = table_codec.decode(chunk.read_bytes(), kind, (rows, columns), "here")
            # In front, so that every other column has another place.
            wider = np.insert(table, 0, value, axis=1)
            chunk.write_bytes(table_codec.encode(wider, kind))
            node["shape"] = [rows, columns + 1]
            node["chunk_grid"]["configuration"]["chunk_shape"] = [max(rows, 1), columns + 1]
            node["attributes"]["fields"].insert(0, "later_column")
            (old / key.path / prefix / path / "zarr.json").write_bytes(metadata.encode(node))
        leaf.write_text(json.dumps(document))
    store = ingest.open_store(old)
    assert list(store.verify()) == []
    assert len(store.tensors(where="nan_count > 0")) == 5
    assert len(list(store.step(0, 1).export(tmp_path / "out"))) > 0
    assert ingest.consolidate(old, rebuild=True)
