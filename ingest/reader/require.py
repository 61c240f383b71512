"""Whether a place holds a store; if not, what it is, and the command that was probably meant."""

from __future__ import annotations

import difflib
import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

from workers.errors import DumpIngestError, StoreFormatError, StoreMissing, UsageError
from workers.host.paths import from_here
from workers.store import commit
from workers.store.model import StoreAddress
from workers.store.objects import ObjectStore
from workers.store.opening import connect
from workers.store.record import missing_root


def require_store(objects: ObjectStore, url: str) -> None:
    """Raise an error unless the place holds a store.

    Raises:
        StoreMissing: it could, and does not.
        UsageError: it holds something else.
        StoreFormatError: a newer version of dump-ingest wrote it.
        DamagedStore: its root is damaged, or missing although it holds commits.
    """
    path = Path(objects.address.url)
    if objects.is_local and _is_file(path):
        raise UsageError(f"{url} is a file, not a store", hint=_hint_for_file(path))
    try:
        if commit.read_root(objects) is not None:
            return
    except StoreFormatError:  # a rank or a step has a `zarr.json`, too
        if (store := store_above(objects.address)) is not None:
            message = f"{url} is a part of the store {store}"
            raise UsageError(message, hint=f"Name the store: {store}") from None
        raise
    if commit.holds_commits(objects):
        raise missing_root(url)
    raise _no_store(objects, url)


def _no_store(objects: ObjectStore, url: str) -> UsageError:
    path = Path(objects.address.url)
    if objects.is_local and path.is_dir() and (root := _dump_at(path)) is not None:
        hint = f"Ingest it first: dump-ingest ingest {shlex.quote(str(root))} --store run.zarr"
        return UsageError(f"{url} holds a dump, not a store", hint=hint)
    hint = "Is the URL right? `ingest` and `watch` create a store."
    if objects.is_local and (similar := _similar_store(path)):
        hint = f"Did you mean {Path(url).with_name(similar)}?"
    return StoreMissing(f"{url}: no dump-ingest store", hint=hint)


def _similar_store(path: Path) -> str:
    """Return the name of a store next to a path that is missing, if one is like its own; else ""."""
    with suppress(OSError):
        stores = [entry for entry in path.parent.iterdir() if (entry / "zarr.json").is_file()]
        stems = {entry.stem: entry.name for entry in stores}  # most stores share the suffix
        return next((stems[stem] for stem in difflib.get_close_matches(path.stem, stems, n=1)), "")
    return ""


def _hint_for_file(path: Path) -> str:
    if path.suffix in (".yml", ".yaml"):
        return "STORE comes first; rules are named with --rules, settings with --config."
    if (store := store_above(StoreAddress(str(path)))) is not None:
        return f"It is a part of a store. Name the store: {store}"
    return "Name the directory or URL of a store, such as run.zarr."


def refuse_in_store(path: Path) -> None:
    """Refuse a path inside a store: `gc` and a new consolidated view delete what does not belong there.

    Raises:
        UsageError: the path is inside a store.
    """
    if (store := store_above(StoreAddress(str(from_here(path).resolve())))) is not None:
        raise UsageError(
            f"{path} would lie in the store {store}",
            hint="Name a place outside the store: gc would delete it.",
        )


def store_above(address: StoreAddress) -> str | None:
    """Return the URL of the store in which a place lies; None if there is none."""
    protocol, separator, path = address.url.rpartition("://")
    for parent in map(str, PurePosixPath(path).parents):
        above = replace(address, url=f"{protocol}{separator}{parent}")
        with suppress(DumpIngestError):
            if parent != "." and commit.read_root(connect(above)) is not None:
                return above.url
    return None


def _dump_at(path: Path) -> Path | None:
    from ingest.layouts.detect import find_dump  # deferred: only for the message of an error

    with suppress(DumpIngestError):
        return find_dump(path).root
    return None


def _is_file(path: Path) -> bool:
    """Return whether a path is a file; not if that may not be known: reading the store says why."""
    try:
        return path.is_file()
    except PermissionError:
        return False
