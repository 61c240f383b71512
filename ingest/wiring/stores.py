"""The store that settings name."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ingest.layouts.base import Dump
from ingest.layouts.detect import find_dump
from ingest.reader.require import store_above
from ingest.settings import Settings
from workers.errors import DumpIngestError, UsageError
from workers.store import commit
from workers.store.model import Grid, StoreAddress
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve

_WRONG_PLACE_HINT = "Is --store right? Name a directory of its own for the store, such as run.zarr."


def grid_of(settings: Settings) -> Grid:
    """Return the sizes of chunks, shards and jobs into which payloads are cut."""
    return Grid(
        int(settings.chunk_size),
        int(settings.shard_size),
        int(settings.job_size),
        settings.keep_device_layout,
    )


def address_of_store(settings: Settings) -> StoreAddress:
    """Return where the store is, and how long to wait for its answers.

    Raises:
        UsageError: its URL or an option is wrong.
    """
    return resolve(settings.store or "", settings.store_options, timeout_s=settings.store_timeout_s)


def place_of_store(settings: Settings, dump: Dump | None) -> StoreAddress:
    """Return where the store is to be.

    Raises:
        UsageError: the store would lie in the dump, or where the workers cannot see it; it is a file; or its
            URL is wrong.
    """
    store = address_of_store(settings)
    if store.url.startswith("memory:"):
        raise UsageError(
            f"{store.url} is in the memory of one process, and workers are processes of their own",
            hint="Name a directory, or a URL such as s3://bucket/run.zarr.",
        )
    if Path(store.url).is_file():
        raise UsageError(f"{store.url} is a file, not a store", hint=_WRONG_PLACE_HINT)
    if dump is not None and Path(store.url).resolve().is_relative_to(dump.root.resolve()):
        raise UsageError(
            f"the store {store.url} would lie in the dump {dump.root}",
            hint="Name a directory elsewhere: the store would be taken for a part of the dump.",
        )
    return store


def refuse_misplaced(objects: ObjectStore) -> None:
    """Do nothing unless a new store would lie in another store or in a dump: both have rank directories.

    Raises:
        UsageError: it would.
    """
    place = Path(objects.address.url)
    if not objects.is_local:
        return
    if (store := store_above(objects.address)) is not None:
        raise UsageError(f"{place} would lie in the store {store}", hint=_WRONG_PLACE_HINT)
    if not place.is_dir():
        return
    root = None
    with suppress(DumpIngestError):  # most directories are not part of a dump
        root = find_dump(place).root
    if root is not None and place.resolve().is_relative_to(root.resolve()):
        raise UsageError(f"{place} holds a dump, not a store", hint=_WRONG_PLACE_HINT)


def has_store(settings: Settings) -> bool:
    """Return whether the store that the settings name exists.

    Raises:
        UsageError: its URL is wrong.
        StoreError: the store cannot be used.
    """
    objects = open_objects(address_of_store(settings))
    return commit.read_root(objects) is not None
