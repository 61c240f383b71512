"""`import ingest` offers everything that users need, and loads only what they use."""

import inspect
import os
import pydoc
import re
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


#: What a type checker must know of expressions in a notebook.
TYPES = {
    'ingest.open_store("run.zarr")': "ingest.reader.dump_store.DumpStore",
    'store.tensors("Log.*", rank=1)': "ingest.reader.step.Tensors",
    'store.tensors("Log.*")[0]': "ingest.reader.tensor.Tensor",
    'store.tensors("Log.*")[0].statistics': "workers.arrays.statistics.Statistics",
    'store.tensors("Log.*")[0].read()': "numpy.ndarray[tuple[Any, ...], numpy.dtype[Any]]",
    'store.tensors("Log.*")[0][1:2]': "numpy.ndarray[tuple[Any, ...], numpy.dtype[Any]]",
    "store.tensors().to_pandas()": "pandas.core.frame.DataFrame",
    "store.select(rank=1)[:2]": "ingest.reader.step.Steps",
    "store.step(1, 2).status": "str",
    "ingest.origin(store)": "ingest.questions.origin.answer.OriginAnswer",
    "ingest.divergence(store)": "ingest.questions.divergence.result.Divergence",
    'ingest.compare("a", "b")': "ingest.questions.compare.result.Comparison",
    'ingest.trend(store, "*")': "pandas.core.frame.DataFrame",
    "ingest.UsageError('').hint": "str",
}
ROOT = Path(__file__).parents[3]


def test_types_of_the_guide_are_known_and_typos_are_not(tmp_path: Path) -> None:
    """Every cell of the guide passes mypy --strict, as in the editor of a user."""
    page = (ROOT / "docs/python.md").read_text()
    cells = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "guide.py").write_text("".join(cells))
    reveal = "".join(f"reveal_type({expression})\n" for expression in TYPES)
    typos = "ingest.opn_store\nstore.tensor\nstore.tensors()[0].nan_count\n"
    (tmp_path / "typed.py").write_text(f'import ingest\nstore = ingest.open_store("r")\n{reveal}{typos}')
    done = subprocess.run(
        # With the cache of `make lint`, this takes a few seconds.
        [sys.executable, "-m", "mypy", "--no-error-summary", tmp_path / "guide.py", tmp_path / "typed.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "MYPY_FORCE_COLOR": "0"},
    )
    assert re.findall(r'Revealed type is "(.+)"', done.stdout) == list(TYPES.values())
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    absent = [re.search(r'has no attribute "(\w+)".*\[attr-defined\]$', line) for line in errors]
    assert [match and match[1] for match in absent] == ["opn_store", "tensor", "nan_count"], errors


def test_package_of_another_project_in_the_place_of_ours_is_named(tmp_path: Path) -> None:
    """A training repository has a directory `workers`, and a notebook beside it."""
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers/__init__.py").write_text("raise SystemExit('must not run')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport ingest"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert "ImportError: dump-ingest needs its package `workers`" in done.stderr
    assert f"{tmp_path}/workers. Rename that one" in done.stderr


def test_errors_say_what_to_do(nan_log: Path) -> None:
    store = ingest.open_store(nan_log)
    with pytest.raises(ingest.UsageError) as absent:
        store.step(7, 1)
    assert str(absent.value) == f"{absent.value.message}\n{absent.value.hint}"
    assert absent.value.hint.startswith("The store has ranks 0-1")
    assert issubclass(ingest.DamagedStore, ingest.DumpIngestError)


def test_names_of_the_package_are_those_of_the_module() -> None:
    assert [name for name in api.__all__ if getattr(ingest, name) is not getattr(api, name)] == []


def test_both_list_the_same_names() -> None:
    assert sorted(ingest.__all__) == dir(ingest) == sorted([*api.__all__, "__version__"])
    assert all(hasattr(ingest, name) for name in ingest.__all__)


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
