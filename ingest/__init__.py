"""dump-ingest: tensor dumps of training jobs in one queryable Zarr store.

import ingest
store = ingest.open_store("s3://bucket/run.zarr")
for tensor in store.tensors(step=9, where="nan_count > 0"):
    print(tensor.rank, tensor.name, tensor.statistics.nan_count)
"""

from __future__ import annotations

import ast
import os
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any


def _require_own_workers() -> None:
    """Check that `workers` is the package that was installed with this one, before anything of it runs.

    Raises:
        ImportError: another package has the name, such as a directory beside the notebook.
    """
    spec = find_spec("workers")
    place = next(iter(spec.submodule_search_locations or ()), spec.origin) if spec else None
    own = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "workers")  # noqa: PTH118, PTH120  (pathlib takes 10 ms)
    if place is not None and os.path.realpath(place) != own:
        raise ImportError(
            f"dump-ingest needs its package `workers` ({own}), but Python finds another of that name first: "
            f"{place}. Rename that one, start Python in another directory, or move its directory behind "
            "site-packages in sys.path before `import ingest`."
        )


_require_own_workers()

if TYPE_CHECKING:
    from ingest.api import *  # noqa: F403  (the same names, for type checkers and editors)
    from ingest.api import __all__ as __all__
    from workers import __version__ as __version__


@cache
def _homes() -> dict[str, tuple[str, str]]:
    """Return the module of each public name and its name there, as `api.py` imports it.

    It is read and not imported: opening a store then takes 0.3 s instead of the 2 s of `ingest.api`, and
    `dump-ingest --help` imports neither numpy nor a codec.
    """
    with open(os.path.join(os.path.dirname(__file__), "api.py"), encoding="utf-8") as file:  # noqa: PTH118, PTH120, PTH123  (as above)
        imports = [node for node in ast.parse(file.read()).body if isinstance(node, ast.ImportFrom)]
    homes = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in imports
        for alias in node.names
    }
    return {"__version__": ("workers", "__version__"), **homes}


def _load(name: str) -> Any:
    if name == "__all__":
        return sorted(_homes())
    if name not in _homes():
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    module, attribute = _homes()[name]
    return getattr(import_module(module), attribute)


if not TYPE_CHECKING:
    # To a type checker it would mean that the module has every name.
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted(_homes())
