"""The tensors that a comparison lists: all that are worth it, or the worst of many, in order of execution."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ingest.questions.compare.compared_tensor import ComparedTensor, Verdict

#: The most tensors that a comparison lists; if more differ, the worst of them.
MAX_LISTED = 50_000


@dataclass(slots=True)
class ListedTensors:
    """The tensors that are listed so far, step by step."""

    keep_equal: bool
    """Whether equal tensors are listed, too."""
    dropped: int = 0
    """Tensors that are counted and not listed."""
    damaged: int = 0
    """Tensors that could not be read because a store is damaged, listed or not."""
    _tensors: list[tuple[int, ComparedTensor]] = field(default_factory=list)
    """Each with its place in the order in which tensors were added."""
    _added: int = 0

    def add(self, tensors: Iterable[ComparedTensor]) -> None:
        """Add the tensors of the next step, in the order in which they are to be listed."""
        for tensor in tensors:
            self.damaged += tensor.damaged
            if self.keep_equal or tensor.verdict is not Verdict.EQUAL:
                self._tensors.append((self._added, tensor))
                self._added += 1
        if len(self._tensors) > 2 * MAX_LISTED:
            self._drop()

    def listed(self) -> tuple[ComparedTensor, ...]:
        """Return the tensors that are listed, in the order in which they were added."""
        if len(self._tensors) > MAX_LISTED:
            self._drop()
        return tuple(tensor for _, tensor in sorted(self._tensors, key=lambda kept: kept[0]))

    @property
    def notes(self) -> list[str]:
        """What a reader of the list should know."""
        if not self.dropped:
            return []
        return [f"only the {MAX_LISTED} worst tensors are listed, {self.dropped} others are only counted"]

    def _drop(self) -> None:
        """Drop all but the worst tensors."""
        self._tensors.sort(key=lambda kept: kept[1].badness)
        self.dropped += len(self._tensors) - MAX_LISTED
        del self._tensors[MAX_LISTED:]
