"""Layouts that SGLang's dumper was told (`dims`), hidden from the search and then held against what it finds.

The dumps are real. What hides the truth is that the files are written again: in the pickle of each, the keys
that tell a layout or the place of a rank have other names. So nothing that reads the files can know it.
"""

import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import ingest
from ingest.reader.dump_store import DumpStore
from ingest.reader.unsharded import told_placement
from tests.dumps import unpack
from tests.pipeline import ingest_directly
from tests.pt_files import text

#: All annotations in the dumps, and what SGLang means by them (`comparator/dims_spec`).
MEANINGS = {
    "b s # tp:replicated": "replicated",
    "b s h # tp:replicated": "replicated",
    "b s v # tp:replicated": "replicated",
    "b s h[tp]": "shard 2",
    "b s f[tp]": "shard 2",
    "b n[tp] s t": "shard 1",
    "b s h[tp:partial]": "partial sum",
}
#: Keys by the names that hide them.
HIDDEN = {"dims": "note"} | {
    f"{axis}_{key}": f"{axis}_{other}"
    for axis in ("tp", "etp")
    for key, other in {"rank": "note", "size": "word"}.items()
}
ASYNCHRONOUS = "torch.distributed._functional_collectives.AsyncCollectiveTensor"
NOT_KNOWN = {"?", "each rank its own"}


class Key(NamedTuple):
    """A tensor of a run."""

    step: int | None
    name: str


class Outcome(NamedTuple):
    """One kind of answer."""

    dims: str
    placement: str
    known_by: str
    rating: str


@dataclass(frozen=True)
class Annotated:
    """A run of two ranks: what it says of its layouts, and the same run without that."""

    dims: dict[Key, str]
    unreduced: frozenset[Key]
    """Tensors that were dumped before their reduction was done: `dims` does not hold of their bytes."""
    hidden: DumpStore

    def rating(self, key: Key, placement: str, *, is_sum: bool = False) -> str:
        """Return whether an answer is `right`, `open` or `wrong`; or `unreduced`, where `dims` is wrong.

        Args:
            key: the tensor.
            placement: the answer.
            is_sum: whether the pieces in the files add up to the tensor of one process.
        """
        if placement in NOT_KNOWN:
            return "open"
        if placement == MEANINGS[self.dims[key]]:
            return "right"
        return "unreduced" if placement == "partial sum" and is_sum and key in self.unreduced else "wrong"


def hide(dump: Path, into: Path) -> Path:
    """Write the files of a dump again, with other names for the keys in `HIDDEN`."""
    into.mkdir()
    for path in dump.iterdir():
        with zipfile.ZipFile(path) as told, zipfile.ZipFile(into / path.name, "w") as untold:
            for member in told.namelist():
                content = told.read(member)
                if member.endswith("/data.pkl"):
                    for key, other in HIDDEN.items():
                        content = content.replace(text(key), text(other))
                untold.writestr(member, content)
    return into


def ingested(dump: Path, store: Path) -> DumpStore:
    ingest_directly(dump, store, sketches=True)
    return ingest.open_store(store)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("real")
    unpack("pt/parallel-layouts", into)
    return into / "parallel-layouts"


@pytest.fixture(scope="module")
def one(real: Path) -> DumpStore:
    """The run of one process, without annotations."""
    return ingested(hide(real / "sglang-tp1", real / "hidden-tp1"), real / "tp1.zarr")


@pytest.fixture(scope="module", params=["tp2", "tp2-bias"])
def two(real: Path, request: pytest.FixtureRequest) -> Annotated:
    """A run of two ranks; in the second one, each rank adds a bias."""
    name: str = request.param
    told = ingested(real / f"sglang-{name}", real / f"told-{name}.zarr")
    hidden = ingested(hide(real / f"sglang-{name}", real / f"hidden-{name}"), real / f"hidden-{name}.zarr")
    dims, unreduced = {}, set()
    for tensor in told.tensors(rank=0):
        key = Key(tensor.step, tensor.name)
        said = tensor.attributes["meta"].get("dims")
        if said is None:
            continue
        dims[key] = said
        assert told_placement(tensor.attributes) == {"tp": MEANINGS[said]}
        (other,) = told.tensors(tensor.name, rank=1, step=tensor.step)
        if MEANINGS[said] == "replicated" and tensor.digest != other.digest:
            assert tensor.attributes["tensor"] == {"kind": ASYNCHRONOUS, "completed": False}
            unreduced.add(key)
    assert set(dims.values()) == set(MEANINGS)
    assert not any(told_placement(tensor.attributes) for tensor in hidden.tensors(rank=0, step=1))
    return Annotated(dims, frozenset(unreduced), hidden)


def ratings(outcomes: Counter[Outcome]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for outcome, number in outcomes.items():
        counts[outcome.rating] += number
    return dict(counts)


def table(outcomes: Counter[Outcome]) -> str:
    lines = (f"{outcome.rating:10}{number:4}  {outcome}" for outcome, number in sorted(outcomes.items()))
    return "\n".join(lines)


def against(two: Annotated, one: DumpStore) -> Iterator[Outcome]:
    """Compare with one process; yield what is found about each annotated tensor."""
    found = ingest.compare(two.hidden.url, one.url, keep_equal=True)
    rows = {Key(row.key_a.step, row.name_a): row for row in found.tensors if row.name_a}
    for key, dims in two.dims.items():
        row = rows[key]
        if row.held is None:
            yield Outcome(dims, "?", "no counterpart", two.rating(key, "?"))
            continue
        pieces = [tensor.read() for tensor in two.hidden.tensors(key.name, step=key.step)]
        (whole,) = one.tensors(row.name_b, step=key.step)
        is_sum = pieces[0].shape == whole.shape and np.allclose(sum(pieces), whole.read(), atol=1e-4)
        rating = two.rating(key, row.held.placement, is_sum=is_sum)
        yield Outcome(dims, row.held.placement, row.held.certainty, rating)


def test_layouts_against_one_process_are_those_of_the_annotations(
    two: Annotated, one: DumpStore, request: pytest.FixtureRequest
) -> None:
    outcomes = Counter(against(two, one))
    expected = {  # as `docs/layouts.md` says
        "tp2": {"right": 119, "open": 3, "unreduced": 4},
        "tp2-bias": {"right": 115, "open": 6, "unreduced": 3},
    }
    assert ratings(outcomes) == expected[request.node.callspec.params["two"]], table(outcomes)


def test_layouts_of_one_run_alone_are_those_of_the_annotations_or_open(
    two: Annotated, request: pytest.FixtureRequest
) -> None:
    outcomes: Counter[Outcome] = Counter()
    dims = {key.name: said for key, said in two.dims.items()}
    layout = ingest.layout(two.hidden)
    for kind in layout.kinds:
        if kind.name in dims:
            key = next(key for key in two.dims if key.name == kind.name)
            known_by = kind.why.partition(" dump.")[0]
            outcome = Outcome(dims[kind.name], kind.placement, known_by, two.rating(key, kind.placement))
            outcomes[outcome] += kind.tensors
    assert layout.findings == (), "no mistake shows without a reference"
    expected = {"tp2": {"right": 47, "open": 79}, "tp2-bias": {"right": 46, "open": 78}}
    assert ratings(outcomes) == expected[request.node.callspec.params["two"]], table(outcomes)
