"""Ways to damage one object of a store that lies in a directory."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.damage.objects import StoredObject


@dataclass(frozen=True, slots=True)
class Damage:
    """One way to damage one object."""

    name: str
    spoil: Callable[[Path], None]
    """Given the path of the object."""
    keeps_size: bool = False
    """Whether nobody notices who does not read the object."""
    is_removal: bool = False
    """Whether the object does not exist any more."""
    is_replacement: bool = False
    """Whether it is another whole object of the same kind."""


def damages_of(stored: StoredObject, store: Path, flips: int, seed: int) -> Iterator[Damage]:
    """Yield the damages of an object; bits are flipped at places that the seed determines."""
    content = (store / stored.key).read_bytes()
    choose = random.Random(f"{seed} {stored.key}")
    yield Damage("deleted", Path.unlink, is_removal=True)
    yield Damage("a directory", _make_directory, is_removal=True)
    yield Damage("unreadable", _make_unreadable(content))
    if content:
        yield Damage("empty", _content(b""))
        yield Damage("truncated", _content(content[: choose.randrange(len(content))]))
        start = choose.randrange(len(content))
        stop = min(len(content), start + choose.randint(1, max(len(content) // 4, 1)))
        zeroed = content[:start] + bytes(stop - start) + content[stop:]
        if zeroed != content:
            yield Damage("a range zeroed", _content(zeroed), keeps_size=True)
        for at in sorted(choose.sample(range(8 * len(content)), min(flips, 8 * len(content)))):
            flipped = bytearray(content)
            flipped[at // 8] ^= 1 << at % 8
            yield Damage(f"bit {at} flipped", _content(bytes(flipped)), keeps_size=True)
    for other in stored.of_others:
        yield Damage(f"that of {other}", _content((store / other).read_bytes()), is_replacement=True)
    if stored.older is not None:
        yield Damage("an older version", _content(stored.older.read_bytes()), is_replacement=True)


def _content(data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        then = path.stat().st_mtime_ns
        path.unlink()  # another path may name the same file
        path.write_bytes(data)
        os.utime(path, ns=(then, then))

    return write


def _make_unreadable(data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        _content(data)(path)
        path.chmod(0)

    return write


def _make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
