"""Where compiled kernels are kept: shipped with the installation, or in the first place that can be written.

An image is built once, and runs read-only on many machines. So it ships its kernels, compiled for a target
that all of these machines can execute: `python -m workers.arrays.compiled.ship_kernels` compiles them next to
their source, and records the target there. For x86_64 that is x86-64-v3 (AVX2 and FMA; Intel since 2013, AMD
since 2017). The statistics of 1 MiB of float32 then run at 18 GB/s on a Zen 4, as fast as code compiled for
that processor, and at 5.8 GB/s with code for any x86_64. On aarch64, every processor has vectors of 128 bits.

A processor that lacks what the target needs does not use the shipped kernels, and neither does a process with
a `NUMBA_CPU_NAME` of its own. Then, and if nothing was shipped, kernels are compiled on first use, in six
seconds, and cached: in `NUMBA_CACHE_DIR`, next to their source, in the user's cache directory, or below the
directory for temporary files, whichever can be written first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numba
from numba.core import caching, config

from workers.arrays.compiled import kernel_target
from workers.arrays.compiled.kernel_target import TARGET
from workers.host.paths import own_directory


def dispatchers(functions: Mapping[str, tuple[Callable[..., Any], set[str]]]) -> dict[str, Any]:
    """Return numba's dispatchers: each function is compiled on its first call, unless it is cached.

    The target is set first, because numba reads it from its configuration when it makes the first dispatcher.

    Args:
        functions: by name, functions and the liberties in arithmetic that the compiler may take.
    """
    _use_target()
    return {name: _dispatcher(function, fastmath) for name, (function, fastmath) in functions.items()}


def _use_target() -> None:
    """Have numba compile for the target, also if it was imported before the target was known."""
    kernel_target.use_target()
    if os.environ.get("NUMBA_CPU_NAME") != config.CPU_NAME:  # type: ignore[attr-defined]
        config.reload_config()  # type: ignore[no-untyped-call]


def _dispatcher(function: Callable[..., Any], fastmath: set[str]) -> Any:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        dispatcher: Any = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no directory that numba may write to: a container that is read-only
        directory = own_directory()
        if directory is not None:
            config.CACHE_DIR = str(directory)  # type: ignore[attr-defined]
        # Without one, every process compiles for itself.
        dispatcher = numba.njit(cache=directory is not None, **options)(function)
    if TARGET.exists():
        shipped = _ShippedCache(function)  # type: ignore[no-untyped-call]
        dispatcher._cache = _ShippedFirst(shipped, dispatcher._cache)  # noqa: SLF001
    return dispatcher


class _ShippedLocator(caching.InTreeCacheLocator):
    """Locates the shipped kernels; numba's own locators accept only places that can be written."""

    def ensure_cache_path(self) -> None:
        """Accept the place as it is."""


class _ShippedImpl(caching.CompileResultCacheImpl):
    _locator_classes = [_ShippedLocator]  # noqa: RUF012  (numba's own attribute)


class _ShippedCache(caching.FunctionCache):
    _impl_class = _ShippedImpl


class _ShippedFirst(caching.NullCache):
    """Loads from the shipped cache, else from the other one; writes into the other one."""

    def __init__(self, shipped: Any, other: Any) -> None:
        self._shipped, self._other = shipped, other

    @property
    def cache_path(self) -> Any:
        """The directory that compiled functions come from, for `stats`."""
        return self._shipped.cache_path

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function of a signature, or None."""
        loaded = self._shipped.load_overload(sig, target_context)
        return self._other.load_overload(sig, target_context) if loaded is None else loaded

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled function."""
        self._other.save_overload(sig, data)
