"""What hooks give their tensors to."""

from __future__ import annotations

from typing import Protocol

from ingest.recording.torch_module import TorchTensor
from workers.dump.model import TensorName


class Sink(Protocol):
    """Takes what hooks see."""

    def take(self, tensor: TorchTensor, name: TensorName) -> None:
        """Record a tensor as it is now; its `sequence` is not known yet."""

    def fail(self, what: str, exc: Exception) -> None:
        """Note what could not be recorded: a recorder must not end a training."""
