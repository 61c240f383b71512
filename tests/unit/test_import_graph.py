"""Who may import whom, and what importing may do."""

import ast
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
#: The floors of the house, from the ground up: a room imports only rooms of lower floors.
#: A room is a folder below a package, or a loose module in it.
FLOORS = (
    (
        "workers.errors",
        "workers.events",
        "workers.model",
        "ingest.environment",
        "ingest.units",
    ),
    ("workers.host",),
    ("workers.arrays", "workers.scheduler", "ingest.disk"),
    ("workers.dump", "workers.processes", "ingest.settings"),
    ("workers.store", "ingest.layouts"),
    ("ingest.dump_configs",),
    ("workers.rules", "ingest.reader", "ingest.recording"),
    ("workers.tasks", "ingest.identities"),
    ("workers.plugin", "ingest.planning"),
    ("ingest.steps",),
    ("ingest.dispatch",),
    ("ingest.dump_retention", "ingest.questions"),
    ("ingest.findings",),
    ("ingest.store_gc",),
    ("ingest.consolidating", "ingest.service"),
    ("ingest.metrics", "ingest.reporting", "ingest.repairing"),
    ("ingest.page", "ingest.wiring"),
    ("ingest.agents", "ingest.api", "ingest.doctor", "ingest.golden"),
    ("ingest.cli",),
)
HEAVY = ("distributed", "dask", "zarr", "numcodecs", "s3fs", "botocore", "xarray")


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Return which module imports which; every module is parsed once for all of these tests."""
    return grimp.build_graph("ingest", "workers", cache_dir=None)


@pytest.fixture(scope="module")
def runtime_graph() -> grimp.ImportGraph:
    """Return which module imports which when it runs, at once or deferred."""
    return grimp.build_graph("ingest", "workers", cache_dir=None, exclude_type_checking_imports=True)


def room_of(module: str) -> str:
    """Return the folder below a package that a module is in, or a loose module itself; "" for a package."""
    return ".".join(module.split(".")[:2]) if "." in module else ""


@cache
def imported(path: Path) -> frozenset[str]:
    """Return the names of all modules that a source file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def modules(package: str) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / package).rglob("*.py"))]


def importers(paths: Iterable[str], *refused: str) -> list[str]:
    """Return which of these modules import a refused one, or anything in it."""
    return [
        f"{path} imports {name}"
        for path in paths
        for name in sorted(imported(ROOT / path))
        if any(f"{name}.".startswith(f"{root}.") for root in refused)
    ]


def test_the_modules_have_no_circles(runtime_graph: grimp.ImportGraph) -> None:
    """Deferred imports count: each of them would hide one. A step and its tensors are types of each other."""
    graph = runtime_graph
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules


def test_rooms_import_only_rooms_of_lower_floors(graph: grimp.ImportGraph) -> None:
    """Deferred and type-only imports count here, too."""
    floor_of = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
    rooms = {
        (room_of(module), room_of(imported))
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    }
    assert {room_of(module) for module in graph.modules} - {""} == floor_of.keys()
    upward = {
        (room, other)
        for room, other in rooms
        if room and other and room != other and floor_of[other] >= floor_of[room]
    }
    assert upward == set()


@pytest.mark.parametrize("package", ["ingest", "workers"])
def test_a_package_has_at_most_five_loose_modules(package: str) -> None:
    loose = [path.stem for path in (ROOT / package).glob("*.py") if path.stem != "__init__"]
    assert len(loose) <= 5, loose


def test_the_data_plane_knows_no_service() -> None:
    """Workers run without client, command line and settings."""
    assert importers(modules("workers"), "ingest", "tests", "typer", "rich", "structlog") == []


def test_a_task_imports_no_validation_of_settings() -> None:
    """Rules reach a worker as checked values."""
    code = "import sys, workers.plugin, workers.tasks.run; print('pydantic' in sys.modules)"
    assert run(code) == "False"


def test_what_reads_a_dump_knows_no_store() -> None:
    """How a dump is read and how it is stored meet only where files are converted."""
    assert importers([*modules("workers/dump"), *modules("ingest/layouts")], "workers.store") == []


def test_nobody_imports_the_command_line() -> None:
    others = [module for module in modules("ingest") if not module.startswith("ingest/cli")]
    assert importers(others, "ingest.cli") == []


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
