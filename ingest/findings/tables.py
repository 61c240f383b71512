"""What is known about a store as Parquet files: tidy tables for SQL, pandas and polars."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest.findings.incidents import incidents
from ingest.findings.stored import anomalies
from ingest.reader.catalog import Catalog, Damage
from ingest.reader.choice import Choice
from workers.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

#: The kinds of columns of which pandas does not tell it: of lists, and of tables without rows.
_KINDS = {
    **dict.fromkeys(("shape", "device_shape", "ranks"), "list"),
    **dict.fromkeys(
        ("rank", "step", "row", "occurrence", "tensors", "steps", "first_step", "last_step", "since"), "i"
    ),
    **dict.fromkeys(("value", "threshold"), "f"),
}


def export_tables(
    store: Catalog,
    directory: str | Path,
    rank: Choice = None,
    step: Choice = None,
    *,
    overwrite: bool = False,
    damages: list[Damage] | None = None,
) -> dict[Path, int]:
    """Write `steps`, `tensors`, `findings` and `incidents` as Parquet files; return their numbers of rows.

    The columns are those of `to_pandas()`; what is unknown is null. Needs pyarrow. Memory: the tensors of one
    step of a rank, and all findings.

    Args:
        store: the store, which is listed again.
        directory: created if missing.
        rank: one rank, or several; all if None.
        step: one step, or several; all if None.
        overwrite: replace existing files.
        damages: takes steps that cannot be read; they raise if it is None.

    Raises:
        UsageError: pyarrow is not installed, a rank or step does not exist, or a file exists already.
        DamagedStore: a step cannot be read.
    """
    pa = _import_pyarrow()
    target = Path(directory)
    names = [f"{name}.parquet" for name in ("steps", "tensors", "findings", "incidents")]
    paths = {path.stem: path for path in free_paths(target, names, overwrite=overwrite)}
    steps = store.reopened().select(rank, step, damages=damages)
    tables: Mapping[str, Iterator[pd.DataFrame]] = {
        "steps": iter([steps.to_pandas()]),
        "tensors": (one.tensors().to_pandas() for one in steps if one.key.step is not None),
        "findings": iter([anomalies(store, rank, step).to_pandas()]),
        "incidents": iter([incidents(store, rank, step).to_pandas()]),
    }
    target.mkdir(parents=True, exist_ok=True)
    return {path: _write(pa, path, tables[name]) for name, path in paths.items()}


def free_paths(directory: str | Path, names: Iterable[str], *, overwrite: bool) -> list[Path]:
    """Return where to write files of these names.

    Raises:
        UsageError: one of them exists, and is not to be overwritten.
    """
    paths = [Path(directory) / name for name in names]
    if not overwrite and (existing := [path for path in paths if path.exists()]):
        raise UsageError(f"{existing[0]} exists", hint="Name another directory, or pass --overwrite.")
    return paths


def _import_pyarrow() -> Any:
    try:
        import pyarrow.parquet  # deferred: takes 0.2 s, and is an extra
    except ImportError as exc:
        raise UsageError(
            "Parquet files need pyarrow", hint="Install it: pip install 'dump-ingest[parquet]'."
        ) from exc
    return pyarrow


def _write(pa: Any, path: Path, frames: Iterator[pd.DataFrame]) -> int:
    """Write frames one after the other, each as a row group; the file appears when it is whole."""
    partial = path.with_name(f"{path.name}.partial")
    writer, count = None, 0
    try:
        for frame in frames:
            for name in {"coordinates", "rules"} & set(frame):
                frame[name] = frame[name].map(_text)
            schema = pa.schema([_field(pa, frame, str(name)) for name in frame])
            table = pa.Table.from_pandas(frame, schema, preserve_index=False)
            writer = writer or pa.parquet.ParquetWriter(partial, schema, compression="zstd")
            writer.write_table(table)
            count += len(frame)
    finally:
        if writer is not None:
            writer.close()
    if writer is not None:
        partial.replace(path)
    return count


def _text(value: object) -> object:
    """Return a mapping as JSON: Parquet files of several runs need the same types."""
    return json.dumps(value) if isinstance(value, dict) else value


def _field(pa: Any, frame: pd.DataFrame, name: str) -> pa.Field:
    kind = frame.dtypes[name].kind
    types = {"i": pa.int64(), "f": pa.float64(), "b": pa.bool_(), "list": pa.list_(pa.int64())}
    return pa.field(name, types.get(_KINDS.get(name, kind) if kind == "O" else kind, pa.string()))
