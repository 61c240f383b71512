"""PyTorch, which is an optional dependency: it is imported when something is recorded."""

from __future__ import annotations

from typing import Any, TypeAlias

from workers.errors import UsageError

#: PyTorch and its parts: it is not installed where types are checked.
Torch: TypeAlias = Any
TorchTensor: TypeAlias = Any
TorchModule: TypeAlias = Any


def import_torch() -> Torch:
    """Return the module `torch`.

    Raises:
        UsageError: PyTorch is not installed.
    """
    try:
        import torch  # deferred: optional, and takes 1.5 s
    except ImportError as exc:
        raise UsageError(
            "the recorder needs PyTorch, which is not installed", hint="pip install 'dump-ingest[torch]'"
        ) from exc
    return torch
