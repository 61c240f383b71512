"""Which tensors a question is about: by name, operator, graph, role and statistics.

`TensorFilter` chooses among the rows of one step, `BlockFilter` among blocks: one step of several ranks at a
time, as `StepStatistics` reads them.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from workers.arrays.filter import BoundedColumn, Filter
from workers.arrays.statistics import FIELDS
from workers.errors import UsageError
from workers.store.consolidated.blocks import BLOCK_COLUMNS, Block, TensorAxis
from workers.store.roles import ROLES, hints_of, roles_of

#: Conditions on single columns, by the name of the column.
_LABELS = ("graph", "op_type", "io", "role")


class FilterFields(TypedDict, total=False):
    """What a tensor must fulfil; None, or left out, for any."""

    graph: str | None
    """The name of the graph."""
    op_type: str | None
    """The operator type, exactly."""
    io: str | None
    """`input` or `output`."""
    role: str | None
    """`loss`, `gradient`, `weight`, `optimizer_state` or `activation`; see `workers.store.roles`."""
    name: str | re.Pattern[str] | None
    """A glob for `Tensor.name`, or a whole name; or a compiled regular expression to search in it."""
    where: str | None
    """A condition on columns and statistics, such as `"nan_count > 0 and max > 10"`."""


class TensorFilter:
    """A parsed choice of tensors. It can take the place of a `Filter`."""

    def __init__(self, fields: FilterFields, columns: frozenset[str]) -> None:
        """Parse a choice.

        Args:
            fields: what a tensor must fulfil.
            columns: the columns that `where` may use, with those of the labels and `name` among them.

        Raises:
            UsageError: a field or the role does not exist, a field is not text, or `where` is not a
                condition.
        """
        _check_fields(fields)
        self.fields = fields
        where = fields.get("where")
        self._where = None if where is None else Filter(where, columns)
        self._equal: dict[str, str] = {}
        for label in _LABELS:
            value = fields.get(label)
            if isinstance(value, str):
                self._equal[label] = value
        if (role := self._equal.get("role")) is not None:
            self._equal["role"] = checked_role(role)
        pattern = fields.get("name")
        self._is_named = None if pattern is None else _matcher(pattern)

    @property
    def names(self) -> frozenset[str]:
        """The columns that it uses."""
        where = self._where.names if self._where else set()
        return frozenset({*self._equal, *where, *(["name"] if self._is_named else [])})

    @property
    def is_of_names(self) -> bool:
        """Whether it needs nothing but the key of a tensor: it says the same of it in each step and rank."""
        return self.names <= {"name", "graph", "op_type", "io"}

    def mask(self, columns: Mapping[str, Any], rows: int) -> npt.NDArray[np.bool_]:
        """Return for each row whether it is chosen, (row,)."""
        return self.evaluate(columns, (rows,))

    def evaluate(
        self, columns: Mapping[str, Any], shape: tuple[int, ...], *, possible: bool = False
    ) -> npt.NDArray[np.bool_]:
        """Return a mask of the chosen tensors. Names are compared last, and only where it matters.

        Args:
            columns: those that it uses; each broadcasts to the shape. Names are one for each place of the
                last axis.
            shape: of the answer.
            possible: whether those that may fulfil the condition are chosen, too; see `Filter.decide`.
        """
        mask = np.ones(shape, bool)
        for label, value in self._equal.items():
            mask &= columns[label] == value
        if self._where is not None:
            decided = self._where.decide(columns)
            mask &= decided.possible if possible else decided.certain
        if self._is_named is not None:
            any_of = mask.reshape(-1, shape[-1]).any(axis=0)
            names = columns["name"]
            is_named = np.zeros(shape[-1], bool)
            for place in np.flatnonzero(any_of).tolist():
                is_named[place] = self._is_named(names[place])
            mask &= is_named
        return mask

    def __str__(self) -> str:
        """Return the conditions as options of the command line."""
        values = {**self.fields, **self._equal}
        return " ".join(
            f"--{name.replace('_', '-')} {getattr(value, 'pattern', value)!r}"
            for name, value in values.items()
            if value is not None
        )


def with_pattern(pattern: str | None, conditions: FilterFields) -> FilterFields:
    """Return the conditions with a glob for the name among them.

    Raises:
        UsageError: there is a name besides the pattern.
    """
    if pattern is None:
        return conditions
    if conditions.get("name") is not None:
        raise UsageError(f"the pattern {pattern!r} and a name exclude each other", hint="Give one of them.")
    return {**conditions, "name": pattern}


def _check_fields(fields: Mapping[str, object]) -> None:
    """Refuse what Python accepts in place of a `FilterFields`, and would choose all tensors.

    Raises:
        UsageError: a field does not exist, or is not text.
    """
    known = FilterFields.__annotations__
    for name, value in fields.items():
        if name not in known:
            raise UsageError(f"tensors cannot be chosen by {name!r}", hint=f"Conditions: {', '.join(known)}.")
        if name in _LABELS and not isinstance(value, str | None):
            raise UsageError(
                f"{name}={value!r:.80} is not text", hint=f"For example: {name}='{value!s:.20}'."
            )


def checked_role(text: str) -> str:
    """Return the role that a user named, in any case and with `-` or a space for `_`; plurals are understood.

    Raises:
        UsageError: the role does not exist.
    """
    plain = re.sub(r"[\s-]+", "_", text.strip().lower())
    singular = {
        "losses": "loss",
        "optimizer": "optimizer_state",
        "parameter": "weight",
        **{f"{role}s": role for role in ROLES},
    }
    role = singular.get(plain, plain)
    if role not in ROLES:
        near = difflib.get_close_matches(plain, ROLES, n=1, cutoff=0.5)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise UsageError(f"{text!r} is not a role", hint=f"{meant}Roles: {', '.join(ROLES)}.")
    return role


def _matcher(pattern: str | re.Pattern[str]) -> Callable[[str], bool]:
    if not isinstance(pattern, str):
        if hasattr(pattern, "search"):
            return lambda name: pattern.search(name) is not None
        # A rank as if it came first, or a list.
        raise UsageError(
            f"{pattern!r:.80} is not a name",
            hint="A glob such as 'Log*', or a compiled regular expression. Ranks: tensors(rank=1, step=2).",
        )
    match = re.compile(fnmatch.translate(pattern)).match
    # Names may hold `[`, `*` and `?` themselves.
    return lambda name: name == pattern or match(name) is not None


_INTEGERS = frozenset(["slot", "occurrence", "copy"])


class AxisColumns:
    """The columns of the tensors of a growing axis, each made once for each tensor."""

    def __init__(self, axis: TensorAxis) -> None:
        self._axis = axis
        self._columns: dict[str, npt.NDArray[Any]] = {}

    def column(self, name: str, width: int) -> npt.NDArray[Any]:
        """Return a field of the keys, `name` or `hint`, (width,)."""
        known = self._columns.get(name)
        size = 0 if known is None else known.size
        if size < width:
            added = self._values(name, size)
            self._columns[name] = added if known is None else np.concatenate([known, added])
        return self._columns[name][:width]

    def _values(self, name: str, first: int) -> npt.NDArray[Any]:
        keys = [self._axis[place] for place in range(first, len(self._axis))]
        if name == "hint":
            return hints_of((key.op_type, key.op_name, key.io, key.slot) for key in keys)
        return np.array([getattr(key, name) for key in keys], np.int64 if name in _INTEGERS else object)

    def roles(self, row: npt.NDArray[Any], count: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """Return the roles of one step, (rank, tensor) of str; "" for what is absent.

        Args:
            row: (rank, tensor), the order of execution; -1 for what is absent.
            count: (rank, tensor), numbers of elements.
        """
        width = row.shape[1]
        hints = self.column("hint", width)
        graphs = list(
            zip(self.column("net", width).tolist(), self.column("graph", width).tolist(), strict=True)
        )
        roles = np.full(row.shape, "", object)
        for rank in range(row.shape[0]):
            places = np.flatnonzero(row[rank] >= 0)
            places = places[np.argsort(row[rank, places], kind="stable")]
            roles[rank, places] = roles_of(
                hints[places], count[rank, places], [graphs[place] for place in places.tolist()]
            )
        return roles


class BlockFilter:
    """A choice of tensors, applied to one block after the other of the same axis."""

    def __init__(
        self, fields: FilterFields, axis: TensorAxis, columns: frozenset[str] = BLOCK_COLUMNS
    ) -> None:
        """Parse a choice, which may name these columns.

        Raises:
            UsageError: it is not one; see `TensorFilter`.
        """
        self.filter = TensorFilter(fields, columns)
        self._columns = AxisColumns(axis)
        # Names are those of all steps: comparing them for each step would take most of the time.
        self._of_keys: npt.NDArray[np.bool_] = np.zeros(0, bool)

    def applied(self, block: Block) -> Block:
        """Return a block in which the tensors that are not chosen are absent."""
        mask = self.mask(block)
        return replace(
            block,
            row=np.where(mask, block.row, -1).astype(block.row.dtype),
            statistics=np.where(mask[..., None], block.statistics, np.nan),
            digest=np.where(mask[..., None], block.digest, 0).astype(block.digest.dtype),
        )

    def mask(self, block: Block) -> npt.NDArray[np.bool_]:
        """Return a mask of the tensors that are present and chosen, (rank, tensor)."""
        width = block.row.shape[1]
        if block.tensors is not None:
            return block.present & self.of_names(int(block.tensors[-1]) + 1)[block.tensors]
        if self.filter.is_of_names:
            return block.present & self.of_names(width)
        columns = {name: self._column(block, name) for name in self.filter.names}
        return self.filter.evaluate(columns, block.row.shape) & block.present

    def may(self, block: Block, sketches: Mapping[str, BoundedColumn]) -> npt.NDArray[np.bool_]:
        """Return a mask of the tensors that are present and may be chosen, (rank, tensor).

        Args:
            block: has all tensors from the first one, and the statistics that the choice names.
            sketches: by name, what it asks of sketches, (rank, tensor).
        """
        columns = {
            name: sketches[name] if name in sketches else self._column(block, name)
            for name in self.filter.names
        }
        shape = block.row.shape
        may = self.filter.evaluate(columns, shape) | self.filter.evaluate(columns, shape, possible=True)
        return may & block.present

    def of_names(self, width: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the first tensors of the axis that a choice of names has, (width,)."""
        if self._of_keys.size < width:
            columns = {name: self._columns.column(name, width) for name in self.filter.names}
            self._of_keys = np.broadcast_to(self.filter.evaluate(columns, (width,)), (width,))
        return self._of_keys[:width]

    def _column(self, block: Block, name: str) -> Any:
        if name in FIELDS:
            return block.statistic(name)
        if name == "role":
            return self._columns.roles(block.row, block.statistic("count"))
        if name == "rank":
            return np.array(block.ranks)[:, None]
        if name == "step":
            return block.step
        return self._columns.column(name, block.row.shape[1])
