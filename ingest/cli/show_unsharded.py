"""What `dump-ingest show --unsharded` prints: a tensor that is put together from the pieces of ranks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ingest
from ingest.cli.printing import print_json, print_text, say
from ingest.cli.show_report import print_field, print_slice
from ingest.reader.ranges import format_ranges
from ingest.reader.text import shape_text

#: A tensor of up to this many elements is printed without `--at`.
_MAX_SHOWN = 16 * 1024 * 1024
#: The most elements whose values are in JSON without `--at`.
_MAX_VALUES = 1000


def _save(values: Any, path: Path) -> None:
    widened = ingest.save_npy(values, path)
    say(f"wrote {path}" + (f" as {widened}" if widened else ""))


def show_whole(
    tensor: ingest.Tensor, placement: str, at: str | None, save: Path | None, *, json: bool
) -> None:
    """Print a whole tensor or a slice of it, or write it to a file.

    Raises:
        UsageError: it is not known how ranks hold it, the slice is not one, or the file cannot be written.
        DamagedStore: chunks of a piece are missing or damaged.
    """
    # deferred: numpy takes 0.1 s to import
    from ingest.reader.anatomy import parse_index
    from ingest.reader.shown import check_slice

    whole = tensor.unsharded(placement)
    values = None if at is None else whole[parse_index(at, whole.shape)]
    if at is not None and save is None:
        check_slice(values, at)
    if save is not None:
        _save(whole if values is None else values, save)
    facts = {
        "name": whole.name,
        "ranks": list(whole.ranks),
        "placement": str(whole.placement),
        "known_by": whole.why,
        "dtype": whole.dtype,
        "shape": list(whole.shape),
    }
    if json:
        print_json({**facts, "at": at, "values": None if save else _few_values(whole, values)})
        return
    texts = {"ranks": format_ranges(whole.ranks), "shape": shape_text(whole.shape)}
    for field, value in (facts | texts).items():
        print_field(field, str(value))
    if save is None:
        print_text()
        _print_values(whole, values, at)


def _print_values(whole: ingest.UnshardedTensor, values: Any, at: str | None) -> None:
    if at is not None:
        print_slice(values, at)
    elif math.prod(whole.shape) <= _MAX_SHOWN:
        print_text(str(whole.read()))


def _few_values(whole: ingest.UnshardedTensor, values: Any) -> Any:
    """Return the values of a slice as JSON has them, or of all of a small tensor; else None."""
    if values is None and math.prod(whole.shape) <= _MAX_VALUES:
        values = whole.read()
    return None if values is None else _plain(values)


def _plain(values: Any) -> Any:
    return values.tolist() if values.dtype.kind in "iub" else values.astype(float).tolist()
