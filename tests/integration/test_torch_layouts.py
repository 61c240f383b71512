"""Real DTensors, sequence parallelism, FSDP and layouts by hand, on process groups of two and four ranks.

What `torch.distributed` says of each tensor is hidden from the comparison, and then held against it.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

import ingest
from ingest.questions.compare.result import Comparison, Verdict
from ingest.questions.compare.run import compare
from tests.sharded_net import LAYOUT
from tests.stores import ingest_directly
from tests.torch_parallel import NETS, run_ranks

pytestmark = pytest.mark.campaign

RANKS = (2, 4)
_REMARKS = re.compile(r" \((?:uneven|\d+ positions? of padding)\)")


class Runs:
    """All runs of both numbers of ranks, how ranks hold each tensor, and what a comparison says."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
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
    assert len(runs.told) == 35  # as `docs/layouts.md` says
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
    assert counts["certain"] >= 421
    assert counts.total() == 429


def test_no_run_is_taken_for_a_mistake(runs: Runs) -> None:
    """Sums of ranks come in another order than those of one process: that is rounding."""
    assert {name: found.first for name, found in runs.compared.items() if not found.is_within} == {}


def test_flat_parameters_of_fsdp1_are_not_compared(runs: Runs) -> None:
    """Without `use_orig_params`, they join what one process holds as several tensors; a note says so."""
    joined = [name for name in runs.told if "joined" in name]
    assert len(joined) == 8
    for name in joined:
        found = runs.compared[name]
        rows = [row for row in found.tensors if "_flat_param" in row.name]
        assert {(row.verdict, row.held) for row in rows} == {(Verdict.ONLY_A, None)}
        units = 3 if "each" in name else 1
        assert len(rows) == 2 * units
        (note,) = (note for note in found.notes if "flat" in note)
        assert f"{2 * units} tensors of A" in note


def test_flat_parameters_of_fsdp1_are_no_mistake_of_one_run_alone(runs: Runs, tmp_path: Path) -> None:
    """Each rank has another part: no replicas that drifted, and no shards in a wrong place."""
    ingest_directly(runs.directory / "mlp-fsdp1-joined-each-2", tmp_path / "run.zarr", layout=LAYOUT)
    layout = ingest.layout(ingest.open_store(tmp_path / "run.zarr"))
    flat = [kind for kind in layout.kinds if "_flat_param" in kind.name]
    assert len(flat) == 6
    assert {kind.placement for kind in flat} == {"each rank its own"}
    assert layout.findings == ()


def test_each_kind_of_layout_was_there(runs: Runs) -> None:
    kinds = {truth for held in runs.told.values() for truth in held.values()}
    assert {
        *("replicated", "partial sum", "whole", "shard 0", "shard 1", "shard 2"),
        "flat shard",
        *("blocks 0 (8+8+8 per rank)", "blocks 2 (4+4+4 per rank)"),
        *("shard 0, replicated", "shard 0, shard 1", "shard 0, shard 2", "strided shard 0, shard 0"),
    } <= kinds
