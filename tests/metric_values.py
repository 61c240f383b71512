"""Make steps that metrics report, and read the values of metrics."""

from prometheus_client import CollectorRegistry

from ingest.layouts.base import Listing
from ingest.steps.watcher import DumpState
from workers.model import SourceFile, StepKey

NOW = 1_800_000_000.0


def listing(rank: int, step: int | None, *, files: int = 1, newest: float = NOW) -> Listing:
    """Return the listing of a step."""
    sources = tuple(SourceFile(f"rank_{rank}/{step}/{number}.npy", 100, 0) for number in range(files))
    return Listing(StepKey(rank, step), sources, newest, later_begun=False)


def look(present: list[Listing], pending: list[Listing]) -> DumpState:
    """Return the state of a dump with these steps."""
    return DumpState(
        {listed.key: listed for listed in present}, {listed.key: listed for listed in pending}, ()
    )


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """Return the value of a series; None if it does not exist."""
    return registry.get_sample_value(name, labels)


def series(registry: CollectorRegistry) -> int:
    """Return how many series a scrape contains; `serve` turns off those of creation times."""
    names = (sample.name for family in registry.collect() for sample in family.samples)
    return sum(not name.endswith("_created") for name in names)
