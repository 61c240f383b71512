"""Modules that `torch.compile` has compiled: hooks inside of them do not run.

`torch.compile(module)` returns an `OptimizedModule`, whose own hooks run outside of the compiled code.
`module.compile()` replaces how a module is called, hooks included, so its call is wrapped instead.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ingest.recording.torch_module import TorchModule

_ATTRIBUTE = "_compiled_call_impl"


def is_compiled(module: TorchModule) -> bool:
    """Return whether a module is compiled, by either way."""
    return type(module).__name__ == "OptimizedModule" or getattr(module, _ATTRIBUTE, None) is not None


def run_within(module: TorchModule, context: Callable[[], AbstractContextManager[Any]]) -> Callable[[], None]:
    """Run the compiled code of a module within a context from now on; return what ends that."""
    attribute = "forward" if type(module).__name__ == "OptimizedModule" else _ATTRIBUTE
    call = getattr(module, attribute)

    def within(*args: Any, **kwargs: Any) -> Any:
        with context():
            return call(*args, **kwargs)

    object.__setattr__(module, attribute, within)
    return lambda: object.__setattr__(module, attribute, call)


class CompiledCalls:
    """Wraps the calls of modules that are compiled by `module.compile()`.

    Args:
        before, after: as forward hooks with keyword arguments are called.
    """

    def __init__(self, before: Callable[..., Any], after: Callable[..., Any]) -> None:
        self._before = before
        self._after = after
        self._wrapped: list[tuple[TorchModule, Any]] = []

    def wrap(self, module: TorchModule) -> bool:
        """Wrap a module, and return whether it is one to wrap."""
        call = getattr(module, _ATTRIBUTE, None)
        if call is None or type(module).__name__ == "OptimizedModule":
            return False

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self._before(module, args, kwargs)
            output = call(*args, **kwargs)
            self._after(module, args, kwargs, output)
            return output

        object.__setattr__(module, _ATTRIBUTE, wrapped)
        self._wrapped.append((module, call))
        return True

    def unwrap(self) -> None:
        """Restore all modules."""
        for module, call in self._wrapped:
            object.__setattr__(module, _ATTRIBUTE, call)
        self._wrapped = []
