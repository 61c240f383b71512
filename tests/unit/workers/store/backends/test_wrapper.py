"""A wrapper is where the store inside it is."""

from pathlib import Path

from tests.wrapped_objects import WrappedObjects
from workers.store.backends.local import LocalObjects
from workers.store.backends.wrappers import WrapperObjects
from workers.store.model import StoreAddress


def test_wrappers_of_wrappers_tell_of_the_innermost_store(tmp_path: Path) -> None:
    inner = LocalObjects(StoreAddress(str(tmp_path)))
    outer = WrapperObjects(WrappedObjects(WrappedObjects(inner)))
    assert outer.address is inner.address
    assert (outer.is_local, outer.tells_progress) == (inner.is_local, inner.tells_progress)
    assert repr(outer) == f"WrapperObjects(WrappedObjects(WrappedObjects({inner!r})))"
