"""What all other modules build on: the keys of steps, source files, small pickles, arithmetic, groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

MIB = 1024 * 1024
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def ceil_div(dividend: int, divisor: int) -> int:
    """Return the quotient rounded up. Exact, unlike `math.ceil` of a quotient of floats."""
    return -(-dividend // divisor)


def bounded_ns(time_ns: int) -> int:
    """Return a time in nanoseconds since the epoch; if 64 bits do not hold it, the nearest that they do.

    They hold 1677 to 2262. File systems hold more, and clocks may be wrong.
    """
    return time_ns if -(2**63) <= time_ns < 2**63 else min(max(time_ns, -(2**63)), 2**63 - 1)


class Positional:
    """Pickles its fields by position, in half the time that slotted dataclasses take to do it by name."""

    __slots__ = ()
    __match_args__: tuple[str, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, name) for name in self.__match_args__)


@dataclass(frozen=True, slots=True)
class StepKey:
    """One rank's dump of one step; `step` is None for files that the rank dumped outside of any step."""

    rank: int
    step: int | None

    @property
    def path(self) -> str:
        """The leaf group of the store that belongs to this key."""
        return f"rank_{self.rank}/" + ("run" if self.step is None else f"step_{self.step}")

    @property
    def order(self) -> tuple[int, int]:
        """A sort key: by step, then rank; what belongs to no step comes first."""
        return (-1 if self.step is None else self.step, self.rank)

    def __str__(self) -> str:
        return f"rank {self.rank} " + ("run files" if self.step is None else f"step {self.step}")


class SourceFile(msgspec.Struct, frozen=True, eq=False):
    """One file of a dump as a listing shows it; `path` is relative to the dump, separated by `/`.

    Two are equal if path, size and time are. A frozen dataclass takes eight times as long to make.
    """

    path: str
    size: int
    mtime_ns: int
    """See `bounded_ns`."""
    writable: bool = True
    """Whether its owner may write it. MindSpore removes that permission when it has closed the file."""
    version: int = 0
    """A number that differs when the time of its inode (ctime) or the inode itself does; 0 if not known.
    Stays in the process that listed the file: it is part of no fingerprint, and is not pickled."""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SourceFile)
            and self.path == other.path
            and self.size == other.size
            and self.mtime_ns == other.mtime_ns
        )

    def __hash__(self) -> int:
        return hash((self.path, self.size, self.mtime_ns))

    def __reduce__(self) -> tuple[Any, ...]:
        return SourceFile, (self.path, self.size, self.mtime_ns, self.writable)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 tensor`, `2 tensors`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def ranges_text(numbers: Iterable[int], between: str) -> str:
    """Return numbers in ascending order, neighbours as a range.

    >>> ranges_text([7, 8, 9, 3], "|")
    '3|7-9'
    """
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return between.join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def grouped(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, list[_Value]]:
    """Return the values of each key; keys and values in the order of the pairs."""
    groups: dict[_Key, list[_Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
