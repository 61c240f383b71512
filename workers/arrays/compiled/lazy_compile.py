"""Functions that numba compiles on first use.

Importing a module of such functions does not import numba, and changes neither its configuration nor the
environment. `workers.arrays.compiled.kernel_cache` says where compiled code is kept.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

#: The functions that were not used yet, by module and name, and the liberties in arithmetic of each.
_waiting: dict[str, dict[str, tuple[Callable[..., Any], set[str]]]] = {}
_lock = threading.Lock()


def compiled(fastmath: set[str]) -> Callable[[Function], Function]:
    """Return a decorator that has a function compiled by numba on first use, or loaded from the cache.

    The functions of one module may call one another: the first call of any of them replaces all of them, in
    the namespace of their module, with what numba made of them. Later calls cost nothing extra.

    Args:
        fastmath: the liberties that the compiler may take in arithmetic, as `numba.njit` names them.
    """

    def register(function: Function) -> Function:
        module, name = function.__module__, function.__name__
        _waiting.setdefault(module, {})[name] = function, fastmath

        @wraps(function)
        def compile_and_call(*arguments: Any) -> Any:
            _compile_module(module, function.__globals__)
            return function.__globals__[name](*arguments)

        return compile_and_call  # type: ignore[return-value]  # it has the same signature

    return register


def compile_now(module: str) -> None:
    """Replace the functions of a module with what numba makes of them, if none was called before."""
    _compile_module(module, vars(sys.modules[module]))


def _compile_module(module: str, namespace: dict[str, Any]) -> None:
    with _lock:
        if module not in _waiting:
            return  # another thread was faster
        from workers.arrays.compiled import kernel_cache  # deferred: numba takes 0.4 s to import

        # All at once: what numba compiles must not meet a function that still waits.
        namespace.update(kernel_cache.dispatchers(_waiting[module]))
        del _waiting[module]
