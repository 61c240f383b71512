"""The kinds of objects in a store, and the object that stands for each kind."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.damage.whole_store import NAN_STEP, WholeStore
from workers.arrays.statistics import FIELDS, NON_FINITE_FIELDS
from workers.store.consolidated.cubes import KEY_FIELDS, TOTALS

_NAMES = (
    (re.compile(r"[0-9a-f]{16,}(-[0-9a-f]{16})?"), "{name}"),
    (re.compile(r"\b(rank|step)_\d+"), r"\1_{n}"),
    (re.compile(r"\d+(\.\d+)?\.(begun|done|removed|\{name\})"), r"{n}.\2"),
    (re.compile(r"(findings|removed)/\d+\."), r"\1/{n}."),
    (re.compile(r"/c(/\d+)+$"), "/c"),
)
#: Arrays of the view that have the same form.
_ALIKE = {
    **{f"consolidated/{name}/c": "consolidated/{statistic}/c" for name in FIELDS},
    **{f"consolidated/{name}/c": "consolidated/{count}/c" for name in NON_FINITE_FIELDS},
    **{f"consolidated/by_tensor/{name}/c": "consolidated/by_tensor/{statistic}/c" for name in FIELDS},
    **{f"consolidated/{name}/c": "consolidated/{total}/c" for name in TOTALS},
    **{f"consolidated/{name}/c": "consolidated/{field}/c" for name in KEY_FIELDS},
}


def kind_of(key: str) -> str:
    """Return the kind of an object: its key without numbers and names."""
    for pattern, form in _NAMES:
        key = pattern.sub(form, key)
    return _ALIKE.get(key, key)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object of the store, and what may take its place."""

    key: str
    kind: str
    of_others: tuple[str, ...]
    """Objects of the same kind with another content: of another rank, and of another step or place."""
    older: Path | None
    """An older version of it."""

    @property
    def place(self) -> tuple[str, str]:
        """Rank and step in its key; "" for none."""
        return _number("rank", self.key), _number("step", self.key)


class Inventory:
    """All objects of a store by kind."""

    def __init__(self, whole: WholeStore) -> None:
        """List the store."""
        self._whole = whole
        self.kinds: dict[str, list[str]] = defaultdict(list)
        for path in sorted(whole.store.rglob("*")):
            if path.is_file():
                key = path.relative_to(whole.store).as_posix()
                self.kinds[kind_of(key)].append(key)

    @cached_property
    def representatives(self) -> list[StoredObject]:
        """One object of each kind: of the step in which a NaN is born, if there is one."""
        return [self.stored(min(keys, key=_preference)) for keys in self.kinds.values()]

    def stored(self, key: str) -> StoredObject:
        """Return an object with what may take its place."""
        kind = kind_of(key)
        content = (self._whole.store / key).read_bytes()
        others = [other for other in self.kinds[kind] if (self._whole.store / other).read_bytes() != content]
        rank, step = _number("rank", key), _number("step", key)
        others.sort(key=lambda other: (_number("step", other) != step, other), reverse=True)
        chosen = [
            next((other for other in candidates if (_number("rank", other) == rank) == is_same), None)
            for is_same, candidates in ((True, others), (False, others[::-1]))
        ]
        older = [path / key for path in self._whole.earlier]
        versions = [path for path in older if path.is_file() and path.read_bytes() != content]
        return StoredObject(
            key, kind, tuple(other for other in chosen if other), versions[-1] if versions else None
        )


def _preference(key: str) -> tuple[bool, bool, bool, str]:
    step = f"step_{NAN_STEP}"
    of_max = "/max/" in key or "/nan_count/" in key or "/name/" in key or "/tensors/" in key
    return step not in key, "rank_1" not in key, not of_max, key


def _number(axis: str, key: str) -> str:
    match = re.search(rf"\b{axis}_(\d+)", key)
    return match[1] if match else ""
