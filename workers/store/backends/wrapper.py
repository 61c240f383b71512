"""What all wrappers around an `ObjectStore` have in common."""

from __future__ import annotations

from workers.store.model import StoreAddress
from workers.store.objects import ObjectStore


class WrapperObjects:
    """Is where the store inside is; subclasses add what an `ObjectStore` does."""

    def __init__(self, inner: ObjectStore) -> None:
        """Pass everything on to `inner`."""
        self._inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"

    @property
    def address(self) -> StoreAddress:
        """Where the store inside is."""
        return self._inner.address

    @property
    def is_local(self) -> bool:
        """Whether the store inside is a directory."""
        return self._inner.is_local

    @property
    def tells_progress(self) -> bool:
        """Whether the store inside tells of the progress of its requests."""
        return self._inner.tells_progress
