"""Predict from histograms what casts lose of every tensor of real dumps, and compare with ml_dtypes.

    python -m tests.casts [DIRECTORY of dumps ...]

Every dump in `tests/data`, and every one below the given directories, is ingested with sketches; the trees of
`tests.torch_truth.LAYOUTS` by their patterns. A dump with the tensors of one before it is named and not
counted again. Every distinct tensor of floats is cast to each format at several scales. For powers of two,
the predicted number of elements that underflow must be the true one, and that of overflow, if there is none;
else the true numbers must lie between the bounds. It prints how many casts were compared for each dump, and
what has none, and exits with 1 if any prediction is wrong.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ingest.api import open_store
from ingest.layouts.detect import find_dump
from ingest.reader.step_tables import histograms_of
from tests.dumps import NAMES, DumpLibrary
from tests.pipeline import ingest_directly
from tests.torch_truth import LAYOUTS
from tests.unit.workers.arrays.sketches.test_rounding import FORMATS, cast_losses, lies_in
from workers.arrays.number_formats import NAMED
from workers.arrays.sketches.histogram import Histogram
from workers.arrays.sketches.rounding import losses, power_below, scale_for
from workers.errors import DumpIngestError, UsageError

_FLOATS = ("float16", "float32", "bfloat16")
_SCALES = (1.0, 2.0**7, 2.0**-9, 3.7)


def main() -> None:
    """Compare all dumps, and print what was compared."""
    total: Counter[str] = Counter()
    names: dict[frozenset[str], str] = {}
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for number, (name, dump) in enumerate(_dumps(root, list(map(Path, sys.argv[1:])))):
            counts: Counter[str] = Counter()
            store = root / "stores" / str(number)
            try:
                ingest_directly(dump, store, sketches=True, layout=_layout_of(dump))
                digests = _digests(store)
                if first := names.get(digests):
                    print(f"{name}: the tensors of {first}", flush=True)
                    continue
                if digests:
                    names[digests] = name
                for values, histogram in _tensors(store):
                    counts += _compared(values, histogram)
            except DumpIngestError as exc:
                print(f"{name}: {exc.message}", flush=True)
            print(name, dict(counts) or "no tensors of floats", flush=True)
            total += counts + Counter(dumps=bool(counts))
    print("total", dict(total))
    sys.exit(1 if total["wrong"] else 0)


def _dumps(root: Path, others: list[Path]) -> Iterator[tuple[str, Path]]:
    library = DumpLibrary(root / "dumps")
    (root / "dumps").mkdir()
    for name in NAMES:
        for dump in _below(library[name]):
            yield str(dump.relative_to(root / "dumps")), dump
    for other in others:
        for dump in _below(other):
            yield str(dump), dump


def _below(directory: Path) -> Iterator[Path]:
    """Yield the dumps at or below a directory; print which of its directories have none."""
    try:
        yield find_dump(directory, layout=_layout_of(directory)).root
    except UsageError as exc:
        if "contains" not in exc.message:
            print(exc.message, flush=True)
            return
        for below in sorted(path for path in directory.iterdir() if path.is_dir()):
            yield from _below(below)


def _layout_of(dump: Path) -> str:
    """Return the pattern of a tree that no layout covers."""
    return next((LAYOUTS[part] for part in dump.parts if part in LAYOUTS), "")


def _digests(store: Path) -> frozenset[str]:
    """Return what identifies the tensors of a store."""
    opened = open_store(store)
    steps = (opened.step(key.rank, key.step) for key in opened.keys)
    return frozenset(tensor.digest for step in steps for tensor in step.tensors() if tensor.is_dumped)


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
