"""A store that forwards every call to another store; tests subclass it to count calls, to wait or to fail."""

from workers.store.backends.wrappers import WrapperObjects


class WrappedObjects(WrapperObjects):
    """Forwards every call to the store inside. Subclasses override the calls that they change.

    In a directory, `put_many` calls `put` for each object, so overriding `put` is enough to see every write.
    """
