"""Predict from histograms what casts lose of every tensor of real dumps, and compare with ml_dtypes.

    python -m tests.casts [DIRECTORY of dumps ...]

Every dump in `tests/data`, and each directory `dump` below the given ones, is ingested with sketches. Every
distinct tensor of floats is cast to each format at several scales. For powers of two, the predicted number of
elements that underflow must be the true one, and that of overflow, if there is none; else the true numbers
must lie between the bounds. It prints how many casts were compared for each dump, and exits with 1 if any
prediction is wrong.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ingest.api import open_store
from ingest.reader.step_histograms import histograms_of
from tests.dumps import NAMES, DumpLibrary
from tests.pipeline import ingest_directly
from tests.unit.workers.arrays.test_rounding import FORMATS, cast_losses, lies_in
from workers.arrays.histogram import Histogram
from workers.arrays.number_formats import NAMED
from workers.arrays.rounding import losses, power_below, scale_for
from workers.errors import DumpIngestError

_FLOATS = ("float16", "float32", "bfloat16")
_SCALES = (1.0, 2.0**7, 2.0**-9, 3.7)


def main() -> None:
    """Compare all dumps, and print what was compared."""
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for name, dump in _dumps(root, list(map(Path, sys.argv[1:]))):
            counts: Counter[str] = Counter()
            try:
                ingest_directly(dump, root / "stores" / name, sketches=True)
                for values, histogram in _tensors(root / "stores" / name):
                    counts += _compared(values, histogram)
            except DumpIngestError as exc:
                print(f"{name}: {exc.message}")
            print(name, dict(counts), flush=True)
            total += counts
    print("total", dict(total))
    sys.exit(1 if total["wrong"] else 0)


def _dumps(root: Path, others: list[Path]) -> Iterator[tuple[str, Path]]:
    library = DumpLibrary(root / "dumps")
    (root / "dumps").mkdir()
    for name in NAMES:
        several = sorted(path for path in library[name].iterdir() if path.is_dir())
        for dump in sorted(library[name].rglob("dump")) or several:
            yield "-".join((name, *dump.relative_to(library[name]).parts)), dump
    for other in others:
        for dump in sorted(path for path in other.rglob("dump") if path.is_dir()):
            yield "-".join(dump.relative_to(other).parts), dump


def _tensors(store: Path) -> Iterator[tuple[np.ndarray[Any, Any], Histogram]]:
    """Yield the distinct tensors of floats of a store, as float32, with their histograms as stored."""
    seen = set()
    opened = open_store(store)
    for key in opened.keys:
        step = opened.step(key.rank, key.step)
        histograms = histograms_of(step)
        for tensor in step.tensors():
            if tensor.is_dumped and tensor.row in histograms and tensor.digest not in seen:
                seen.add(tensor.digest)
                values = tensor.read().reshape(-1)
                if values.dtype.name in _FLOATS:
                    yield values.astype(np.float32), histograms[tensor.row]


def _compared(values: np.ndarray[Any, Any], histogram: Histogram) -> Counter[str]:
    """Return how many casts of a tensor were predicted exactly, within bounds, or wrongly."""
    counts = Counter(tensors=1)
    for name in FORMATS:
        target = NAMED[name]
        current = scale_for(histogram.largest, target, powers_of_two=True)
        for scale in {*_SCALES, *([current] if 2.0**-100 < current < 2.0**100 else [])}:
            overflow, underflow = cast_losses(values, target, scale)
            predicted = losses(histogram, target, scale)
            is_right = lies_in(overflow, predicted.overflow) and lies_in(underflow, predicted.underflow)
            # Numbers that vanish in bfloat16 are within the lowest bin.
            if power_below(scale) == scale and name != "bfloat16":
                is_right = is_right and predicted.underflow.is_exact
            is_right = is_right and (overflow > 0 or predicted.overflow.is_exact)
            counts["wrong" if not is_right else "exact" if predicted.is_exact else "bounded"] += 1
    return counts


if __name__ == "__main__":
    main()
