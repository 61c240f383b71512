"""The data plane: what a Dask worker imports. It knows no service, no settings and no command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str


def _load(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version  # deferred: takes 30 ms to import

    try:
        return version("dump-ingest")
    except PackageNotFoundError:  # run from a checkout that was not installed
        return "0"


if not TYPE_CHECKING:
    # To a type checker it would mean that the module has every name.
    __getattr__ = _load
