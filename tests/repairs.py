"""The repair of one step, to call its parts one by one."""

from pathlib import Path

from ingest.api import open_store
from ingest.reader.catalog import Catalog
from ingest.repairing.work import Dumps, RepairPolicy, StepRepair, StepWork, grids_like
from workers.model import StepKey
from workers.rules.load import load_rules
from workers.store.model import Grid


def work_on(store: Path, step: int = 1, *, apply: bool = True) -> StepWork:
    """Return the repair of a step of rank 0, of which nothing is done yet."""
    objects, key = open_store(store).objects, StepKey(0, step)
    dumps = Dumps(objects.address, grids_like(Grid()), load_rules().enabled, "host")
    return StepWork(Catalog(objects), key, dumps, RepairPolicy(apply=apply), StepRepair(key, ()))
