"""`import ingest` offers everything that users need, and loads only what they use."""

import inspect
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import ingest
from ingest import api

#: Libraries that take long to import, and that opening a store does not need.
HEAVY = ("dask", "distributed", "matplotlib", "pandas", "prometheus_client", "pydantic", "xarray", "zarr")


def run(code: str) -> str:
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", api.__all__)
def test_names_of_the_package_are_those_of_the_module(name: str) -> None:
    assert getattr(ingest, name) is getattr(api, name)


def test_both_list_the_same_names() -> None:
    assert sorted(ingest.__all__) == dir(ingest) == sorted([*api.__all__, "__version__"])
    assert all(hasattr(ingest, name) for name in ingest.__all__)


def test_everything_is_imported_by_a_star() -> None:
    names = run("from ingest import *; print(sorted(name for name in globals() if name[:2] != '__'))")
    assert names == str(sorted(api.__all__))


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="module 'ingest' has no attribute 'opened'"):
        _ = ingest.opened  # type: ignore[attr-defined]
    assert not hasattr(ingest, "_private")


def test_opening_a_store_imports_nothing_heavy(nan_log: Path) -> None:
    code = (
        "import sys, ingest\n"
        f"store = ingest.open_store({str(nan_log)!r})\n"
        "assert store.tensors(rank=1, step=2, where='nan_count > 0')\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert run(code) == "[]"


def test_everything_public_is_documented() -> None:
    for name in api.__all__:
        assert inspect.getdoc(getattr(ingest, name)), name
    text = pydoc.plain(pydoc.render_doc(ingest.DumpStore))
    for method in ("tensors", "select", "snapshot", "consolidated", "as_zarr", "verify"):
        assert f"{method}(self" in text
