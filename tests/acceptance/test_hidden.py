"""Layouts that SGLang's dumper was told (`dims`), hidden from the search, then held against what it finds.

The dumps of two ranks are real. What hides the truth is that the files are written again: in the pickle of
each, the keys that tell a layout or the place of a rank have other names. So nothing that reads the files can
know it.
"""

import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import ingest
from ingest.questions.compare.result import Comparison, Verdict
from ingest.reader.dump_store import DumpStore
from ingest.reader.unsharded import told_placement
from tests.pt_files import text
from tests.stores import ingest_and_open, unpack
from workers.errors import UsageError

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
    return ingest_and_open(dump, store, sketches=True)


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


# Meshes of two axes, zigzag, packed sequences and experts in dumps of SGLang's dumper, with hidden `dims`.
#
# A small transformer runs on emulated ranks (`tests/sglang_mesh_program.py`). Its annotations are hidden from
# the search, and then held against what it finds. Where they are seen, whole tensors are those of SGLang's
# comparator.


PROGRAM = Path(__file__).parent.parent / "sglang_mesh_program.py"
#: The axes of the mesh of each run, and the run of one rank with which it is compared.
MESHES = {
    "cp2-tp2": (("cp", "tp"), "one"),
    "sp-sb": (("cp", "tp"), "one-sb"),
    "sp-t": (("cp", "tp"), "one-t"),
    "ep2-etp2": (("moe_ep", "moe_tp"), "one"),
    "dp2-tp2": (("dp", "tp"), "one"),
}
#: The first tensor that differs because of a mistake, with annotations.
MISTAKES = {
    "same-shard": "layers.0.out_partial",
    "swapped-shards": "layers.0.down_partial",
    "no-reduction": "layers.1.out",
    "contiguous": "input_ids",
    "late-chunk-first": "layers.1.context",
}
#: The same without annotations: a sum agrees as a sum, and values that agree in no way leave open which axis
#: of the mesh cuts which axis of the tensor.
UNTOLD = {
    "same-shard": "layers.1.norm",
    "swapped-shards": "layers.1.norm",
    "no-reduction": "layers.1.out",
    "contiguous": "layers.0.scores",
    "late-chunk-first": "layers.1.context",
}

Stored = Callable[[str, str], DumpStore]
Compared = Callable[[str, str], Comparison]


@pytest.fixture(scope="module")
def runs(torch_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001  (they must be there)
    """Run all, in a process of their own that imports PyTorch."""
    into = tmp_path_factory.mktemp("meshes")
    names = [*MESHES, *dict.fromkeys(one for _, one in MESHES.values())]
    names += [f"cp2-tp2+{mistake}" for mistake in MISTAKES]
    subprocess.run([sys.executable, str(PROGRAM), str(into), *names], check=True, cwd=into)
    return into


@pytest.fixture(scope="module")
def stored(runs: Path) -> Stored:
    """Return what opens a run: `told`, `placed` or `hidden`."""

    @cache
    def store(known: str, run: str) -> DumpStore:
        into = runs / f"{known}-{run}.zarr"
        return ingest_and_open(runs / known / run, into)

    return store


def dims_of(store: DumpStore) -> dict[str, str]:
    """Return the annotation of each tensor, by its name."""
    return {tensor.name: tensor.attributes["meta"]["dims"] for tensor in store.tensors(rank=0)}


def meaning(name: str, dims: str, mesh: tuple[str, ...]) -> str:
    """Return the placement that an annotation means; on the axes of a fused projection, with its blocks."""
    axes, _, remarks = dims.partition("#")
    kinds = dict.fromkeys(re.findall(r"(\w+):replicated", remarks), "replicated")
    for axis, said in enumerate(axes.split()):
        for modifier in re.findall(r"[\[,]([\w:]+)", said):
            cut, _, qualifier = modifier.replace("sp", "tp").partition(":")
            kinds[cut] = f"shard {axis}"
            if cut == "tp" and re.search(r"\.(qkv|gate_up)\.", name):
                kinds[cut] = f"blocks {axis}"
            if qualifier == "partial":
                kinds[cut] = "partial sum"
            elif qualifier == "zigzag":
                kinds[cut] = f"zigzag {axis}" + " of each sequence" * (said[0] == "t")
    if "dp" in mesh and "dp" not in kinds:  # which an annotation does not name
        words = [word[0] for word in axes.split()]
        kinds["dp"] = f"shard {words.index('b')}" if "b" in words else "replicated"
    return ", ".join(kind for kind, _ in groupby(kinds[axis] for axis in mesh))


def found(placement: str) -> str:
    """Return a placement that was found without names and lengths; like neighbours are one dimension."""
    plain = re.sub(r" \([^)]*\)|\w+: ", "", placement)
    return ", ".join(kind for kind, _ in groupby(plain.split(", ")))


@pytest.fixture(scope="module")
def compared(stored: Stored) -> Compared:
    """Return what compares a run with that of one rank."""

    @cache
    def compare(known: str, run: str) -> Comparison:
        _, one = MESHES[run.partition("+")[0]]
        return ingest.compare(stored(known, run).url, stored("hidden", one).url, keep_equal=True)

    return compare


def rated(comparison: Comparison, dims: Mapping[str, str], mesh: tuple[str, ...]) -> Counter[str]:
    """Count the answers about annotated tensors that are right, open and wrong."""
    placements = {row.name_a: row.held.placement if row.held else "?" for row in comparison.tensors}
    ratings: Counter[str] = Counter()
    for name, told in dims.items():
        placement = placements.get(name, "?")
        is_right = found(placement) == meaning(name, told, mesh)
        ratings["right" if is_right else "open" if placement == "?" else f"wrong: {name} {placement}"] += 1
    return ratings


@pytest.mark.one_in(2)
@pytest.mark.parametrize("run", MESHES)
def test_layouts_are_those_of_hidden_annotations(stored: Stored, compared: Compared, run: str) -> None:
    """None differs from the run of one rank, and no annotation contradicts what is found."""
    mesh, _ = MESHES[run]
    dims = dims_of(stored("told", run))
    for known in ("hidden", "told") if run != "cp2-tp2" else ("hidden", "placed", "told"):
        comparison = compared(known, run)
        assert rated(comparison, dims, mesh) == {"right": len(dims)}, known
        assert {row.verdict for row in comparison.tensors} <= {Verdict.EQUAL, Verdict.CLOSE, Verdict.IGNORED}
    assert ingest.layout(stored("told", run)).findings == ()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("run", [run for run in MESHES if run != "dp2-tp2"])
def test_whole_tensors_are_those_of_the_comparator_of_sglang(runs: Path, stored: Stored, run: str) -> None:
    """All but packed sequences, whose lengths no annotation tells: they are refused."""
    with np.load(runs / f"{run}.npz") as made:
        for tensor in stored("told", run).tensors(rank=0):
            dims = tensor.attributes["meta"]["dims"]
            expected = made[tensor.name.removeprefix("dump.").removesuffix(".output.0")]
            if "t[cp:zigzag" in dims:
                with pytest.raises(UsageError, match="of each sequence"):
                    tensor.unsharded()
            elif "partial" in dims:
                np.testing.assert_allclose(tensor.unsharded().read(), expected, rtol=1e-5, atol=1e-5)
            else:
                np.testing.assert_array_equal(tensor.unsharded().read(), expected)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(compared: Compared, mistake: str) -> None:
    for known, name in {"told": MISTAKES[mistake], "hidden": UNTOLD[mistake]}.items():
        first = compared(known, f"cp2-tp2+{mistake}").first
        assert first is not None
        assert first.tensor.name_a == f"dump.{name}.output.0", known


def test_mistakes_are_explained(compared: Compared) -> None:
    """Shards of other ranks, a sum that is not reduced, and contiguous chunks that were told to be zigzag."""
    reasons = {
        mistake: {row.name_a: row.reason for row in compared("told", f"cp2-tp2+{mistake}").tensors}
        for mistake in ("same-shard", "swapped-shards", "no-reduction", "contiguous")
    }
    assert "hold the same part" in reasons["same-shard"]["dump.param.0.out.output.0"]
    swapped = "tp 0 holds positions 24 to 47 of axis 1 instead of 0 to 23"
    assert swapped in reasons["swapped-shards"]["dump.param.0.down.output.0"]
    assert "tp: partial sum, and the dump tells" in reasons["no-reduction"]["dump.layers.1.out.output.0"]
    told = "its ranks hold it as cp: shard 1, tp: replicated, and the dump tells cp: zigzag 1"
    assert told in reasons["contiguous"]["dump.input_ids.output.0"]
