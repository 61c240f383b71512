"""Counts what is requested from object stores, whoever requests it."""

from collections.abc import Callable
from typing import Any

import pytest

from workers.store.backends.wrappers import ObservedObjects

_METHODS = ("get", "get_many", "get_range", "children", "sizes")


class CountedRequests:
    """The requests since this was made, or since the last `clear`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: list[str] = []
        """Objects, ranges and listings that were requested, one each."""
        self.ranges: list[tuple[int, int | None]] = []
        """Start and stop of the requested ranges."""
        self.range_nbytes: list[int] = []
        """The bytes that each of them returned."""
        for name in _METHODS:
            monkeypatch.setattr(ObservedObjects, name, self._counting(name, getattr(ObservedObjects, name)))

    def _counting(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(store: ObservedObjects, requested: Any = "", *rest: Any) -> Any:
            self.keys += [requested] if isinstance(requested, str) else list(requested)
            answer = method(store, requested, *rest)
            if name == "get_range":
                self.ranges.append((rest[0], rest[1] if len(rest) > 1 else None))
                self.range_nbytes.append(len(answer or b""))
            return answer

        return counted

    def clear(self) -> None:
        """Count from zero again."""
        self.keys.clear()
        self.ranges.clear()
        self.range_nbytes.clear()

    def of(self, question: Callable[[], object]) -> int:
        """Return how many requests a question takes."""
        self.clear()
        question()
        return len(self.keys)
