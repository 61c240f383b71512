"""The xarray engine `dump-ingest`: opens a store, or one step of it, as a dataset.

xarray loads it through the entry point `xarray.backends`.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy.typing as npt
import xarray as xr
from xarray.backends import BackendArray, BackendEntrypoint
from xarray.core import indexing

from ingest.reader.catalog import Catalog, open_catalog
from ingest.reader.snapshot import partial_reason
from ingest.reader.step import Step
from ingest.reader.zarr_nodes import (
    ViewElements,
    attributes_of_step,
    attributes_of_tensor,
    chunk_shape,
    variable_names,
)
from workers.errors import UsageError
from workers.model import MIB
from workers.store import zarr_dtypes
from workers.store.consolidated.cubes import GROUP

#: The approximate size of a dask chunk with `chunks={}`, in bytes.
_CHUNK_NBYTES = 32 * MIB

# Needed to write a dataset with bfloat16 as Zarr: zarr 3.1 does not load these types by itself.
zarr_dtypes.register()

#: Variables that a dataset has at most unless the user names them: xarray shows each of them in a notebook.
MAX_VARIABLES = 500


class _LazyTensor(BackendArray):
    """A tensor of which xarray reads parts. Its pickle contains its own row of the index only."""

    def __init__(self, elements: ViewElements) -> None:
        self.elements = elements
        self.shape = elements.shape
        self.dtype = elements.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> npt.NDArray[Any]:
        part: npt.NDArray[Any] = indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.BASIC, self.elements.__getitem__
        )
        return part


def _check_choice(
    store: str | os.PathLike[str], rank: int | None, step: int | None, name: str | None
) -> None:
    """Refuse a part of what names the tensors of a step.

    Raises:
        UsageError: only one of rank and step is given, or a name without them.
    """
    if (rank is None) != (step is None):
        given, missing = ("rank", "step") if step is None else ("step", "rank")
        raise UsageError(
            f"{store}: `{given}` is given and `{missing}` is not",
            hint="Give both for the tensors of one step, or neither for the statistics of all steps.",
        )
    if name is not None and rank is None:
        raise UsageError(
            f"{store}: `name` is given without `rank` and `step`",
            hint="It chooses tensors of one step. Of the statistics of all steps, select with xarray.",
        )


class DumpIngestBackend(BackendEntrypoint):
    """Opens the consolidated cubes of a store, or with `rank` and `step` the tensors of one step."""

    description: ClassVar[str] = "Tensor dumps of training jobs in a dump-ingest store"
    url: ClassVar[str] = "docs/python.md"
    open_dataset_parameters: ClassVar[tuple[str, ...] | None] = (
        "filename_or_obj",
        "drop_variables",
        "rank",
        "step",
        "name",
        "include_partial",
        "storage_options",
        "mask_and_scale",
        "decode_times",
        "concat_characters",
        "decode_coords",
        "use_cftime",
        "decode_timedelta",
    )

    def open_dataset(  # type: ignore[override]  # the options are those of this engine
        self,
        filename_or_obj: str | os.PathLike[str],
        *,
        drop_variables: str | Iterable[str] | None = None,
        rank: int | None = None,
        step: int | None = None,
        name: str | None = None,
        include_partial: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        **decoders: Any,
    ) -> xr.Dataset:
        """Open a store; xarray calls this.

        Args:
            filename_or_obj: a directory or any fsspec URL.
            drop_variables: names of variables to leave out.
            rank: with `step`: open the tensors of that step of that rank.
            step: see `rank`.
            name: with `rank` and `step`: a glob for the tensors to open, such as `*Log*`. A step with more
                than 500 tensors needs one, because xarray prepares and shows all of them; `*` is all.
            include_partial: open that step even if files of it are quarantined or missing.
            storage_options: passed to fsspec. Credentials are refused here: they come from the environment.
            decoders: the decoding options of xarray. They apply to the cubes; tensors are never decoded.

        Returns:
            Without `rank` and `step`, the consolidated cubes: one for each statistic, over step, rank and
            tensor. With them, a variable for each tensor that was dumped, of which only the parts that are
            used are read; its attributes are those of the index.

        Raises:
            UsageError: the store, the rank, the step or the cubes do not exist, the step is partial, only
                one of `rank` and `step` is given, or `name` matches nothing, or is missing.
            StoreError: the store cannot be reached, or is damaged.
        """
        if not isinstance(filename_or_obj, str | os.PathLike):
            raise UsageError(f"the engine dump-ingest opens a path or a URL, not {filename_or_obj!r:.80}")
        _check_choice(filename_or_obj, rank, step, name)
        options = dict(storage_options or {})
        store = open_catalog(filename_or_obj, **options)
        dropped = {drop_variables} if isinstance(drop_variables, str) else set(drop_variables or ())
        if rank is None or step is None:
            return _open_cubes(store, options, dropped, decoders)
        opened = _complete(store, rank, step, is_enough=include_partial)
        rows = _named(opened, variable_names(opened.tables), name)
        variables = {shown: _variable(opened, row) for shown, row in rows.items() if shown not in dropped}
        return xr.Dataset(variables, attrs=attributes_of_step(opened))


def _open_cubes(
    store: Catalog, options: dict[str, Any], dropped: set[str], decoders: dict[str, Any]
) -> xr.Dataset:
    if store.objects.get(f"{GROUP}/zarr.json") is None:
        raise UsageError(
            f"{store.url}: no consolidated view",
            hint="`dump-ingest consolidate STORE` creates it. `rank=` and `step=` open a step without it.",
        )
    return xr.open_dataset(
        f"{store.url}/{GROUP}",
        engine="zarr",
        chunks=None,  # xarray chunks the dataset that is returned here
        drop_variables=sorted(dropped),
        # For a directory, zarr refuses options, even an empty dictionary.
        storage_options=options if options and "://" in store.url else None,
        **{name: value for name, value in decoders.items() if value is not None},
    )


def _complete(store: Catalog, rank: int, step: int, *, is_enough: bool) -> Step:
    opened = store.step(rank, step)
    summary = opened.commit.summary
    if summary.status != "complete" and not is_enough:
        raise UsageError(
            f"{store.url}: {opened.key} is {partial_reason(summary)}",
            hint="`include_partial=True` opens partial steps.",
        )
    return opened


def _named(step: Step, rows: Mapping[str, int], name: str | None) -> Mapping[str, int]:
    """Return the variables whose names match.

    Raises:
        UsageError: none does, or there are too many for a dataset and no name is given.
    """
    if name is not None:
        fits = re.compile(fnmatch.translate(name)).match
        chosen = {shown: row for shown, row in rows.items() if shown == name or fits(shown)}
        if not chosen:
            raise UsageError(
                f"{step.key}: no tensor is named {name!r:.200}",
                hint="`store.step(rank, step).tensors()` lists the names. Letters of either case differ.",
            )
        return chosen
    if len(rows) > MAX_VARIABLES:
        raise UsageError(
            f"{step.key} has {len(rows)} tensors, and each would be a variable",
            hint='Choose some: name="*Log*"; or all: name="*". store.tensors(...) reads any of them alone.',
        )
    return rows


def _variable(step: Step, row: int) -> xr.Variable:
    elements = ViewElements(step, row)
    lengths = chunk_shape(elements, _CHUNK_NBYTES)
    by_axis = dict(zip(elements.axes, lengths, strict=True))
    chunks = {name: by_axis[axis] for axis, name in enumerate(elements.dimensions)}
    return xr.Variable(
        elements.dimensions,
        indexing.LazilyIndexedArray(_LazyTensor(elements)),
        attributes_of_tensor(step, row),
        encoding={"preferred_chunks": chunks},
    )
