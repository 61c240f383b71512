"""A directory as store, through the calls of the operating system alone."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from workers.store.backends.failures import MISSING, Backend, Translated, made_progress
from workers.store.model import StoreAddress
from workers.store.objects import NewObject, StoredObject


class LocalObjects(Backend):
    """Objects as files below a directory, each written under a temporary name and then renamed."""

    is_local = True
    tells_progress = True

    def __init__(self, address: StoreAddress) -> None:
        super().__init__(address, address.url)

    def put(self, key: str, data: bytes | bytearray) -> None:
        with self._errors("write", key):
            file = NewFile(self._path(key))
            try:
                file.write(data)
                file.close()
            except BaseException:
                file.drop()
                raise

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        for key, data in objects.items():
            self.put(key, data)
            made_progress()

    def create(self, key: str) -> NewObject:
        return _NewLocalObject(self.address, key, self._path(key))

    def get(self, key: str) -> bytes | None:
        return self.get_range(key, 0)

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        contents = {}
        for key in keys:
            if (data := self.get(key)) is not None:
                contents[key] = data
            made_progress()
        return contents

    def get_range(self, key: str, start: int, stop: int | None = None) -> bytes | None:
        with (
            self._errors("read", key),
            suppress(*MISSING),  # a file may have the name of a group
            open(self._path(key), "rb") as file,  # noqa: PTH123  (paths are text, see `NewFile`)
        ):
            if start < 0:
                start = max(file.seek(0, os.SEEK_END) + start, 0)
            file.seek(start)
            return file.read() if stop is None else file.read(max(stop - start, 0))
        return None

    def delete(self, key: str) -> None:
        with self._errors("delete", key), suppress(*MISSING):
            os.unlink(self._path(key))  # noqa: PTH108  (paths are text, see `NewFile`)

    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(key)
            made_progress()

    def children(self, prefix: str = "") -> list[str]:
        """Return the names in a directory; fsspec looks at each file, which takes ten times as long."""
        with self._errors("list", prefix), suppress(*MISSING):
            return sorted(os.listdir(self._path(prefix)))  # noqa: PTH208  (paths are text, see `NewFile`)
        return []

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the size of every file below a directory, which may be a link; of a link, of its target."""
        with self._errors("list", prefix):
            return {name: stat.st_size for name, stat in _walk(self._path(prefix), follow_file_links=True)}

    def listed(self, prefix: str = "") -> dict[str, StoredObject]:
        with self._errors("list", prefix):
            if self._is_behind_link(prefix):
                return {}
            return {
                name: StoredObject(stat.st_size, stat.st_mtime)
                for name, stat in _walk(self._path(prefix), follow_file_links=False)
            }

    def flush(self, prefix: str) -> None:
        """Have the operating system write all files below a directory, and the directories, to the disk."""
        base = self._path(prefix)
        with self._errors("flush", prefix):
            for directory, _, names in os.walk(base):
                for path in (*(f"{directory}/{name}" for name in names), directory):
                    _fsync(path)
            if not os.path.isdir(base):  # noqa: PTH112  (paths are text, see `NewFile`)
                _fsync(base)
            while base != self._base:
                base = base.rpartition("/")[0]
                _fsync(base)

    def prune(self, prefix: str) -> None:
        """Remove directories without a file in them, from the bottom up; never the store itself."""
        if not prefix or self._is_behind_link(prefix):
            return
        for directory, _, files in os.walk(self._path(prefix), topdown=False):
            if not files:
                with suppress(OSError):  # not empty, or gone already
                    os.rmdir(directory)  # noqa: PTH106  (paths are text, see `NewFile`)

    def _is_behind_link(self, key: str) -> bool:
        """Return whether a part of a key is a symbolic link. The directory of the store itself may be one."""
        parts = key.split("/") if key else []
        return any(os.path.islink(self._path("/".join(parts[:n]))) for n in range(1, len(parts) + 1))  # noqa: PTH114


class _NewLocalObject:
    def __init__(self, address: StoreAddress, key: str, path: str) -> None:
        self._address, self._key = address, key
        with self._errors():
            self._file = NewFile(path)

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        with self._errors():
            self._file.write(piece)

    def close(self) -> None:
        with self._errors():
            self._file.close()

    def drop(self) -> None:
        self._file.drop()

    def _errors(self) -> Translated:
        return Translated("write", self._address, self._key)


def _walk(base: str, *, follow_file_links: bool) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every file below a directory; links to directories are files. fsspec takes five times as long."""
    left = [""]
    while left:
        prefix = left.pop()
        made_progress()
        try:
            entries = os.scandir(f"{base}/{prefix}")
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            with suppress(FileNotFoundError):
                yield "", os.lstat(base)
            continue
        with entries:
            for entry in entries:
                name = f"{prefix}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    left.append(f"{name}/")
                    continue
                with suppress(FileNotFoundError):  # gone since it was listed
                    yield name, entry.stat(follow_symlinks=follow_file_links)


def _fsync(path: str) -> None:
    made_progress()
    try:
        # Without O_NONBLOCK, a pipe that somebody put there blocks for good; the disk refuses to flush it.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return  # a temporary file that another writer has renamed
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


#: Attempts to make the directory of a new file: another process may remove it as empty in between.
_ATTEMPTS = 3
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class NewFile:
    """A new object that is a file, with nothing of it in memory. Raises `OSError`."""

    def __init__(self, path: str) -> None:
        # Text, because a step has a dozen small objects, and making a `Path` for each takes longer than
        # writing them.
        self._path = path
        directory, _, name = path.rpartition("/")
        # Next to its target, because a rename is atomic only within one file system.
        self._temporary = f"{directory}/.{name}.{uuid.uuid4().hex}.tmp"
        try:
            self._fd = os.open(self._temporary, _FLAGS, 0o666)
        except FileNotFoundError:
            self._fd = _open_in_new(directory, self._temporary)

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Add a piece."""
        left = memoryview(piece)
        while left:  # 2 GiB at most are written at once
            left = left[os.write(self._fd, left) :]

    def set_mode(self, mode: int) -> None:
        """Set who may read and write the file, whatever the umask of this process says."""
        os.fchmod(self._fd, mode)

    def close(self) -> None:
        """Give the file its name."""
        self._close()
        os.replace(self._temporary, self._path)  # noqa: PTH105  (see `__init__`)

    def drop(self) -> None:
        """Remove the file, if it is not closed. Failures to do so are not raised: an earlier one is."""
        with suppress(OSError):  # network file systems report an error of a write again
            self._close()
        with suppress(OSError):
            os.unlink(self._temporary)  # noqa: PTH108  (see `__init__`)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _open_in_new(directory: str, path: str) -> int:
    """Make a directory and open a file in it; try again if another process removes it as empty in between."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(FileNotFoundError):
            os.makedirs(directory, exist_ok=True)  # noqa: PTH103  (see `NewFile`)
            return os.open(path, _FLAGS, 0o666)
    os.makedirs(directory, exist_ok=True)  # noqa: PTH103  (see `NewFile`)
    return os.open(path, _FLAGS, 0o666)
