"""What every plan of a dump has in common."""

from pathlib import Path

import numpy as np

from ingest.layouts.detect import find_dump
from ingest.planning.inspection import inspect
from ingest.service.planner import Planner
from tests.npy_files import MadeDump
from workers.rules.load import load_rules
from workers.store.model import Grid
from workers.store.opening import resolve


def test_a_plan_names_dump_host_store_and_rules(made: MadeDump, store: Path) -> None:
    made.add(np.ones(3), rank=2, step=7)
    tree = find_dump(made.root)
    (listing,) = tree.scan({}).listings
    rules = load_rules(None).enabled
    planner = Planner(tree.root, resolve(str(store)), Grid(), rules, "node-1")
    inspected = inspect(tree.root, listing, tree.describe(listing))
    plan = planner.plan(inspected)
    assert (plan.origin.host, plan.origin.root, plan.origin.layout) == ("node-1", str(made.root), "mindspore")
    assert (plan.store.url, plan.rules, plan.without_tensors) == (str(store), rules, "")
    less = planner.plan(inspected, "no room")
    assert less.without_tensors == "no room"
    assert less.fingerprint != plan.fingerprint
