"""Real DTensors, sequence parallelism, FSDP and layouts by hand, on process groups of two and four ranks.

What `torch.distributed` says of each tensor is hidden from the comparison, and then held against it.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

from ingest.questions.compare import Comparison, compare
from tests.sharded_net import LAYOUT
from tests.torch_parallel import NETS, run_ranks

RANKS = (2, 4)
_REMARKS = re.compile(r" \((?:uneven|\d+ positions of padding)\)")


class Runs:
    """All runs of both numbers of ranks, how ranks hold each tensor, and what a comparison says."""

    def __init__(self, directory: Path) -> None:
        self.told: dict[str, dict[str, str]] = {}
        for ranks in RANKS:
            self.told |= run_ranks(directory, ranks)
        self.compared: dict[str, Comparison] = {
            name: compare(
                directory / name,
                directory / f"{name.split('-')[0]}-one",
                layout=LAYOUT,
                across_layouts=True,
                keep_equal=True,
                ignore_unmatched=True,
            )
            for name in self.told
        }

    def judged(self, name: str) -> dict[str, tuple[str, str, str]]:
        """Return by tensor how its ranks hold it, what is said of that, and how certain it is."""
        held = {
            row.name_a.removeprefix("Module..").removesuffix(".output.0"): row.held
            for row in self.compared[name].tensors
            if row.held is not None
        }
        judged = {}
        for tensor, truth in self.told[name].items():
            known = held[tensor]
            is_whole = truth == "whole" and len(known.ranks_a) == 1
            shown = truth if is_whole else _REMARKS.sub("", known.placement)
            judged[tensor] = truth, shown, known.certainty
        return judged


@pytest.fixture(scope="module")
def runs(torch: object, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Every net, in every way of parallelism."""
    assert torch is not None
    return Runs(tmp_path_factory.mktemp("parallel"))


def test_all_layouts_are_right_or_said_to_be_open(runs: Runs) -> None:
    assert {name.split("-")[0] for name in runs.told} == set(NETS)
    counts: Counter[str] = Counter()
    wrong = {}
    for name in runs.told:
        for tensor, (truth, shown, certainty) in runs.judged(name).items():
            counts[certainty] += 1
            if certainty != "open" and shown != truth:
                wrong[name, tensor] = truth, shown, certainty
    assert wrong == {}
    # Norms before training are ones and zeros, of which nobody can tell the order.
    assert counts["open"] <= 2
    assert counts["certain"] >= 385
    assert counts.total() == 393


def test_no_run_is_taken_for_a_mistake(runs: Runs) -> None:
    """Sums of ranks come in another order than those of one process: that is rounding."""
    assert {name: found.first for name, found in runs.compared.items() if not found.is_within} == {}


def test_each_kind_of_layout_was_there(runs: Runs) -> None:
    kinds = {truth for held in runs.told.values() for truth in held.values()}
    assert {
        *("replicated", "partial sum", "whole", "shard 0", "shard 1", "shard 2"),
        "flat shard",
        *("blocks 0 (8+8+8 per rank)", "blocks 2 (4+4+4 per rank)"),
        *("shard 0, replicated", "shard 0, shard 1", "shard 0, shard 2", "strided shard 0, shard 0"),
    } <= kinds
