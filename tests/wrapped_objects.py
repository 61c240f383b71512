"""A store that forwards every call to another store; tests subclass it to count calls, to wait or to fail."""

from collections.abc import Mapping, Sequence

from workers.store.backends.wrapper import WrapperObjects
from workers.store.objects import NewObject, StoredObject, UnfinishedUpload


class WrappedObjects(WrapperObjects):
    """Forwards every call to `inner`. Subclasses override the calls that they change.

    In a directory, `put_many` calls `put` for each object, so overriding `put` is enough to see every write.
    """

    def put(self, key: str, data: bytes | bytearray) -> None:
        self._inner.put(key, data)

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        if self.is_local:
            for key, data in objects.items():
                self.put(key, data)
        else:
            self._inner.put_many(objects)

    def create(self, key: str) -> NewObject:
        return self._inner.create(key)

    def get(self, key: str) -> bytes | None:
        return self._inner.get(key)

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        return self._inner.get_many(keys)

    def get_range(self, key: str, start: int, stop: int | None = None) -> bytes | None:
        return self._inner.get_range(key, start, stop)

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def delete_many(self, keys: Sequence[str]) -> None:
        self._inner.delete_many(keys)

    def children(self, prefix: str = "") -> list[str]:
        return self._inner.children(prefix)

    def unfinished_uploads(self, prefix: str = "") -> list[UnfinishedUpload]:
        return self._inner.unfinished_uploads(prefix)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        self._inner.abort_upload(upload)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        return self._inner.sizes(prefix)

    def listed(self, prefix: str = "") -> dict[str, StoredObject]:
        return self._inner.listed(prefix)

    def flush(self, prefix: str) -> None:
        self._inner.flush(prefix)

    def prune(self, prefix: str) -> None:
        self._inner.prune(prefix)
