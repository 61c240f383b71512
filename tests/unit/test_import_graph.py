"""Who may import whom, and what importing may do."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.structure.graph import circles, import_graph

ROOT = Path(__file__).parents[2]
HEAVY = ("distributed", "dask", "zarr", "numcodecs", "s3fs", "botocore", "xarray")


def imported(path: Path) -> set[str]:
    """Return the names of all modules that a source file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def modules(package: str) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / package).rglob("*.py"))]


def top(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def test_the_modules_have_no_circles() -> None:
    """Deferred and type-only imports count: each of them would hide one."""
    assert circles(import_graph(ROOT)) == []


@pytest.mark.parametrize("module", modules("workers"))
def test_the_data_plane_knows_no_service(module: str) -> None:
    """Workers run without client, command line and settings."""
    names = top(imported(ROOT / module))
    assert not names & {"ingest", "tests", "typer", "rich", "pydantic_settings", "structlog"}


def test_a_task_imports_no_validation_of_settings() -> None:
    """Rules reach a worker as checked values."""
    code = "import sys, workers.plugin, workers.tasks.run; print('pydantic' in sys.modules)"
    assert run(code) == "False"


@pytest.mark.parametrize("module", [*modules("workers/dump"), *modules("ingest/layouts")])
def test_what_reads_a_dump_knows_no_store(module: str) -> None:
    """How a dump is read and how it is stored meet only where files are converted."""
    assert not {name for name in imported(ROOT / module) if name.startswith("workers.store")}


@pytest.mark.parametrize(
    "module", [module for module in modules("ingest") if not module.startswith("ingest/cli")]
)
def test_nobody_imports_the_command_line(module: str) -> None:
    assert not {name for name in imported(ROOT / module) if name.startswith("ingest.cli")}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_help_imports_nothing_heavy() -> None:
    """Help and completion answer at once."""
    code = (
        "import sys\n"
        "from ingest.cli import main\n"
        "sys.argv = ['dump-ingest', '--help']\n"
        "import contextlib, io\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    try: main()\n"
        "    except SystemExit as end: assert not end.code\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert run(code) == "[]"


def test_importing_starts_no_thread_and_registers_no_metric() -> None:
    """A library that is imported has not been asked to do anything."""
    names = sorted(
        module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for package in ("workers", "ingest")
        for module in modules(package)
        if not module.endswith("__main__.py")
    )
    code = (
        "import threading, dask, distributed, zarr, fsspec, prometheus_client, importlib, logging, warnings\n"
        "from prometheus_client import REGISTRY\n"
        "before = threading.active_count(), len(list(REGISTRY.collect())), dict(dask.config.config)\n"
        "handlers = list(logging.getLogger().handlers)\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "assert threading.active_count() == before[0], threading.enumerate()\n"
        "assert len(list(REGISTRY.collect())) == before[1]\n"
        "assert dask.config.config == before[2]\n"
        "assert logging.getLogger().handlers == handlers\n"
        "print('quiet')"
    )
    assert run(code) == "quiet"
