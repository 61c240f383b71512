"""Flip bits in the files of a dump, as a broken chip does."""

from pathlib import Path


def flip(dump: Path, pattern: str, *, rank: int, step: int, element: int, bit: int) -> str:
    """Flip one bit of one float32 element in the only file that matches, and return the file's name."""
    (path,) = dump.glob(f"rank_{rank}/*/*/{step}/{pattern}.npy")
    content = bytearray(path.read_bytes())
    start = 10 + int.from_bytes(content[8:10], "little")
    content[start + 4 * element + bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return path.name
