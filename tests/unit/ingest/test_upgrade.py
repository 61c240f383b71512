"""A store of another format is refused, and left as it is."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import ingest
from ingest.cli.app import COMMANDS, app
from ingest.cli.exits import exit_code_of
from tests import checker
from tests.stores import MadeDump, ingest_directly
from workers.errors import StoreFormatError
from workers.store import commit, metadata, tables
from workers.store.opening import open_objects, resolve


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump of two steps with a NaN, `run`, and its store."""
    root = tmp_path_factory.mktemp("made")
    dump = MadeDump(root / "run")
    for step in range(2):
        dump.add(np.array([1, np.nan if step else 2], "<f4"), step=step)
    ingest_directly(dump.root, root / "store.zarr")
    return root


def test_a_store_of_an_earlier_format_is_refused(made: Path, tmp_path: Path) -> None:
    """None was ever released."""
    store = Path(shutil.copytree(made / "store.zarr", tmp_path / "store.zarr"))
    restate(store, metadata.FORMAT_VERSION - 1)
    with pytest.raises(StoreFormatError, match="new store"):
        ingest.open_store(store)


def restate(store: Path, version: int) -> None:
    root = json.loads((store / "zarr.json").read_text())
    root["attributes"]["dump_ingest"]["format_version"] = version
    (store / "zarr.json").write_text(json.dumps(root))


#: What each command is given, with STORE for the store. None: it opens no store.
WORDS: dict[str, list[str] | None] = {
    "anomalies": ["STORE"],
    "check": None,
    "compare": ["STORE", "STORE"],
    "compare-weights": ["STORE", "STORE"],
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
    "mcp": ["STORE"],
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
    "skill": None,
    "trampled": ["STORE"],
    "audit": ["STORE"],
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
def later_store(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of a later version, which every command is to leave alone."""
    store = Path(shutil.copytree(made / "store.zarr", tmp_path_factory.mktemp("later") / "store.zarr"))
    restate(store, metadata.FORMAT_VERSION + 1)
    return store


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_newer_store_is_refused_and_left_alone(
    command: str, later_store: Path, made: Path, tmp_path: Path
) -> None:
    if command not in WORDS:
        pytest.fail(f"say in this test how {command} is called")
    words = WORDS[command]
    if words is None:
        return
    before = checker.versions(later_store)
    places = {"STORE": str(later_store), "OUT": str(tmp_path / "out"), "DUMP": str(made / "run")}
    result = CliRunner().invoke(app, [command, *(_placed(word, places) for word in words)])
    assert isinstance(result.exception, StoreFormatError), (result.exception, result.output)
    assert exit_code_of(result.exception) == 1
    assert f"store format {metadata.FORMAT_VERSION + 1}" in result.exception.message
    assert "Upgrade" in result.exception.hint
    assert checker.versions(later_store) == before
    assert not (tmp_path / "out").exists()


def test_what_a_later_version_adds_is_passed_over(made: Path, tmp_path: Path) -> None:
    """Fields of the record, columns of the tables, nodes of the generation."""
    old = Path(shutil.copytree(made / "store.zarr", tmp_path / "store.zarr"))
    objects = open_objects(resolve(str(old)))
    root = json.loads((old / "zarr.json").read_text())
    root["attributes"]["dump_ingest"]["signed_by"] = {"name": "later"}
    (old / "zarr.json").write_text(json.dumps(root))
    for key in commit.list_keys(objects):
        leaf = old / key.path / "zarr.json"
        document = json.loads(leaf.read_text())
        del document["attributes"]["dump_ingest_crc32c"]
        record = document["attributes"]["dump_ingest"]
        record["checksums"] = {}
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
            table = tables.decode_table(chunk.read_bytes(), kind, (rows, columns), "here")
            # In front, so that every other column has another place.
            wider = np.insert(table, 0, value, axis=1)
            chunk.write_bytes(tables.encode_table(wider, kind))
            node["shape"] = [rows, columns + 1]
            node["chunk_grid"]["configuration"]["chunk_shape"] = [max(rows, 1), columns + 1]
            node["attributes"]["fields"].insert(0, "later_column")
            (old / key.path / prefix / path / "zarr.json").write_bytes(metadata.encode(node))
        leaf.write_text(json.dumps(document))
    store = ingest.open_store(old)
    assert list(store.verify()) == []
    assert len(store.tensors(where="nan_count > 0")) == 1
    assert len(list(store.step(0, 1).export(tmp_path / "out"))) > 0
    assert ingest.consolidate(old, rebuild=True)
