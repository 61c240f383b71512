"""How the ranks of a run hold tensors of another run, from marginals alone: no tensor is read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ingest.questions.localize import name_of, named_steps
from ingest.questions.question import Answer, Table
from ingest.reader.catalog import Catalog
from ingest.reader.plain import Plain
from ingest.reader.ranges import format_ranges
from ingest.reader.snapshot import LeftOut
from ingest.reader.step import Step
from ingest.reader.step_tables import marginals_of
from ingest.reader.text import shape_text
from workers.arrays.sharded.marginal_placement import FIT, MarginalWay, held_as, ways_held
from workers.arrays.sharded.placement import Held
from workers.arrays.sketches.marginals import Marginal
from workers.errors import UsageError
from workers.rules.names import fits
from workers.store.consolidated.blocks import TensorKey, tensors_of

_NO_MARGINALS = "no marginals of the same axes"
_NO_FIT = "its sums are not those of pieces of this tensor"
_SEVERAL = "several ways fit"


@dataclass(frozen=True, slots=True)
class HeldTensor(Plain):
    """How ranks hold one tensor of the reference."""

    name: str
    """Of the tensor in the reference."""
    pieces: str
    """The name of the pieces; the same unless they were asked for by another name."""
    shape: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    """Ranks whose pieces have equal bytes, in order of the pieces."""
    placement: str
    """`replicated`, `shard N` along axis N, or `partial sum`; "" if it is not known."""
    exactness: str
    """`exact`: the bytes are equal. `estimated`: the sums are, up to `error`. "" if it is not known."""
    error: float
    """How far the sums of the closest way are apart, relative to those of the tensor; NaN if none can be."""
    why: str
    """Why it is not known; "" if it is."""


@dataclass(frozen=True, slots=True, repr=False)
class LayoutByMarginals(Answer):
    """How the ranks of a run hold the tensors of a reference."""

    noun: ClassVar = "tensor"
    hidden: ClassVar = ("left_out",)

    store: str
    step: int
    reference: str
    tensors: tuple[HeldTensor, ...]
    """In order of execution in the reference."""

    left_out: tuple[LeftOut, ...] = field(default=(), init=False)

    def table(self) -> Table[HeldTensor]:
        """Return a row for each tensor of the reference."""
        return Table(
            {
                "tensor": lambda held: held.name,
                "shape": lambda held: shape_text(held.shape),
                "pieces of ranks": lambda held: "; ".join(map(format_ranges, held.groups)),
                "layout": lambda held: held.placement or "?",
                "known": lambda held: held.exactness or held.why,
                "error": lambda held: "-" if math.isnan(held.error) else f"{held.error:.1e}",
            },
            self.tensors,
            self.noun,
            right=("error",),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """What is known of a tensor of one rank."""

    digest: bytes
    shape: tuple[int, ...]
    marginals: Mapping[int, Marginal]


def layout_by_marginals(
    store: Catalog,
    reference: str | Step,
    pattern: str = "*",
    *,
    of: str | None = None,
    step: int | None = None,
) -> LayoutByMarginals:
    """Find how the ranks of a run hold the tensors of a reference: replicated, cut, or as partial sums.

    Marginals and digests tell it, so the tensors may be gone. Sums along an axis are linear: those of shards
    follow one another or add up, those of partial sums add up while their squares do not. Ranks whose bytes
    are equal hold one piece together, in the order of the first rank of each.

    Args:
        store: the run whose ranks hold pieces.
        reference: the rank and step that has whole tensors: `run.zarr@RANK,STEP`, or an open step.
        pattern: a glob for the names of the pieces.
        of: the name of the tensor in the reference that all chosen pieces make up; default: that of the
            pieces.
        step: of the run; default: that of the reference.

    Raises:
        UsageError: a step is not in the store, or no tensor is in both.
        DamagedStore: an index or marginals are damaged.
    """
    (whole_step,) = named_steps(reference)
    number = whole_step.key.step if step is None else step
    pieces = _pieces(store, number, pattern)
    wholes = {key: (row, name) for key, row, name in _tensors(whole_step) if of is None or name == of}
    if of is not None and not wholes:
        raise UsageError(f"{whole_step.address.url}: no tensor is named {of!r}", hint="`ls` lists the names.")
    marginals = marginals_of(whole_step)
    held = []
    for key, (row, name) in wholes.items():
        whole = _piece(whole_step, row, marginals)
        named = pieces.items() if of is not None else [(key, pieces[key])] if key in pieces else []
        held += [_held(name, other.name, by_rank, whole) for other, by_rank in named]
    if not held:
        raise UsageError(
            f"{store.url}: no tensor of step {number} that matches {pattern!r} is in the reference",
            hint="`--whole NAME` says which tensor of the reference the pieces make up.",
        )
    return LayoutByMarginals(store.url, number or 0, name_of(whole_step), tuple(held))


def _tensors(step: Step) -> Iterator[tuple[TensorKey, int, str]]:
    rows, keys = tensors_of(step.tables)
    for row, key in zip(rows.tolist(), keys, strict=True):
        yield key, row, key.name


def _piece(step: Step, row: int, marginals: Mapping[int, Mapping[int, Marginal]]) -> _Piece:
    return _Piece(step.tables.digest[row].tobytes(), step.shape(row), marginals.get(row, {}))


def _pieces(store: Catalog, number: int | None, pattern: str) -> dict[TensorKey, dict[int, _Piece]]:
    """Return by tensor and rank what is known of those whose names match."""
    pieces: dict[TensorKey, dict[int, _Piece]] = {}
    is_wanted = fits(pattern)
    ranks = [key.rank for key in store.keys if key.step == number]
    if not ranks:
        raise UsageError(f"{store.url}: no rank has step {number}", hint="`ls` lists the steps.")
    for rank in ranks:
        step = store.step(rank, number)
        marginals = marginals_of(step)
        for key, row, name in _tensors(step):
            if is_wanted(name):
                pieces.setdefault(key, {})[rank] = _piece(step, row, marginals)
        step.forget_tables()
    return pieces


def _held(name: str, pieces_name: str, by_rank: Mapping[int, _Piece], whole: _Piece) -> HeldTensor:
    groups: dict[object, list[int]] = {}
    for rank in sorted(by_rank):
        piece = by_rank[rank]
        # Without a digest, as where only statistics were dumped, no two ranks are known to hold the same.
        content = (piece.digest, piece.shape) if any(piece.digest) else rank
        groups.setdefault(content, []).append(rank)
    distinct = [by_rank[ranks[0]] for ranks in groups.values()]
    placement, exactness, error, why = _placement(distinct, whole)
    return HeldTensor(
        name, pieces_name, whole.shape, tuple(map(tuple, groups.values())), placement, exactness, error, why
    )


def _ways(distinct: list[_Piece], whole: _Piece) -> list[MarginalWay]:
    ways = ways_held(
        [piece.marginals for piece in distinct],
        [piece.shape for piece in distinct],
        whole.marginals,
        whole.shape,
    )
    if len(distinct) == 1:  # a sum of one, or a single shard, is the tensor itself
        return [way for way in ways if way.held is Held.REPLICATED]
    return ways


def _placement(distinct: list[_Piece], whole: _Piece) -> tuple[str, str, float, str]:
    """Return the placement, its exactness, the error of the closest way, and why it is not known."""
    is_same = any(whole.digest) and all(piece.digest == whole.digest for piece in distinct)
    if is_same and len(distinct) == 1:
        return str(Held.REPLICATED), "exact", 0.0, ""
    ways = _ways(distinct, whole)
    if not ways:
        return "", "", math.nan, _NO_MARGINALS
    way: MarginalWay | None = held_as(ways)
    if way is None:
        return "", "", ways[0].error, _NO_FIT if ways[0].error > FIT else _SEVERAL
    return str(way), "estimated", way.error, ""
