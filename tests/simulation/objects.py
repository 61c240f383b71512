"""The store: objects in memory, the same for all processes, and how a process reaches them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from tests.simulation.faults import OF_READS, OF_SHARDS, OF_WRITES, Faults
from tests.simulation.kernel import EPOCH, Kernel, Process
from workers.errors import StoreUnavailable
from workers.store.commit import CHANGED
from workers.store.model import StoreAddress
from workers.store.objects import Gathered, NewObject, StoredObject, UnfinishedUpload
from workers.store.packed.pool import POOL
from workers.store.record import LEAF

ADDRESS = StoreAddress("/store")
#: Of a generation: which files it has, with size and time; and what is in them. Relative to it.
INDEX, TENSORS = "index/c/0", "tensors/float32"
SHARD = f"{TENSORS}/c"


class Watches(Protocol):
    """What is told of each change of the store."""

    def before_put(self, writer: str, key: str, data: bytes) -> None:
        """An object is about to be written."""

    def after_put(self, writer: str, key: str) -> None:
        """An object was written."""

    def before_delete(self, writer: str, key: str) -> None:
        """An object that exists is about to be removed."""


@dataclass(slots=True)
class Bucket:
    """What the store holds."""

    kernel: Kernel
    objects: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    """Content, and when it was written by the clock of the store."""
    watches: Watches | None = None
    version: int = 0
    """Grows with each change."""
    late: int = 0
    """Writes that were given up and are still on their way."""
    is_late: bool = False
    """Whether what is being written was given up before."""
    spoiled: set[str] = field(default_factory=set)
    """Objects that the store has acknowledged and does not have as they were written."""

    def put(self, writer: str, key: str, data: bytes) -> None:
        if self.watches is not None:
            self.watches.before_put(writer, key, data)
        self.objects[key] = bytes(data), EPOCH + self.kernel.now
        self.version += 1
        if self.watches is not None:
            self.watches.after_put(writer, key)

    def delete(self, writer: str, key: str) -> None:
        if key in self.objects:
            if self.watches is not None:
                self.watches.before_delete(writer, key)
            del self.objects[key]
            self.version += 1

    def data(self, key: str) -> bytes | None:
        stored = self.objects.get(key)
        return None if stored is None else stored[0]


@dataclass(slots=True)
class SimulatedObjects:
    """An `ObjectStore` as one process has it: each call is a step, and may fail as requests do.

    Between looking at a commit and replacing or removing it nobody else goes: these are the windows of one
    request that the design names, and object stores offer no common way to close them. The same holds between
    listing remains and removing them. `windows_open` lets others in.
    """

    process: Process
    bucket: Bucket
    faults: Faults
    windows_open: bool = False
    is_local: bool = False
    tells_progress: bool = True
    address: StoreAddress = ADDRESS
    _window: str = ""
    """The key, or prefix, that was looked at just now."""

    def put(self, key: str, data: bytes | bytearray) -> None:
        if SHARD in key:
            self._put_shard(key, bytes(data))
        else:
            self._write(f"put {key}", key, lambda: self.bucket.put(self.process.name, key, bytes(data)))

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        names = list(objects)
        half = len(names) // 2
        for some in (names[:half], names[half:]):
            if some:
                self._write(f"put {_shortly(some)}", "", partial(self._put_all, objects, some))

    def create(self, key: str) -> NewObject:
        return Gathered(lambda data: self.put(key, data))

    def get(self, key: str) -> bytes | None:
        self._read(f"get {key}")
        self._window = key
        return self.bucket.data(key)

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        if not keys:
            return {}
        self._read(f"get {_shortly(keys)}")
        stored = self.bucket.objects
        return {key: stored[key][0] for key in keys if key in stored}

    def get_range(self, key: str, start: int, stop: int | None = None) -> bytes | None:
        data = self.get(key)
        return None if data is None else data[start:stop]

    def delete(self, key: str) -> None:
        # An array in a pool is listed as a whole, and removed object by object.
        window = self._window if key.startswith(f"{POOL}/") and key.startswith(self._window) else key
        self._write(f"delete {key}", window, lambda: self.bucket.delete(self.process.name, key))
        if window != key:
            self._window = window

    def delete_many(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        prefix = "/".join(keys[0].split("/")[:2])
        self._write(f"delete {_shortly(keys)}", prefix, lambda: self._delete_all(keys))

    def children(self, prefix: str = "") -> list[str]:
        self._read(f"list {prefix or 'the store'}")
        start = f"{prefix}/" if prefix else ""
        return sorted(
            {key[len(start) :].partition("/")[0] for key in self.bucket.objects if key.startswith(start)}
        )

    def sizes(self, prefix: str = "") -> dict[str, int]:
        return {key: stored.nbytes for key, stored in self.listed(prefix).items()}

    def listed(self, prefix: str = "") -> dict[str, StoredObject]:
        self._read(f"list {prefix or 'the store'}")
        self._window = prefix
        start = f"{prefix}/" if prefix else ""
        return {
            "" if key == prefix else key[len(start) :]: StoredObject(len(data), modified_at)
            for key, (data, modified_at) in self.bucket.objects.items()
            if key == prefix or key.startswith(start)
        }

    def unfinished_uploads(self, prefix: str = "") -> list[UnfinishedUpload]:  # noqa: ARG002
        """Return nothing: the store takes objects as a whole."""
        return []

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        raise NotImplementedError(upload)

    def flush(self, prefix: str) -> None:
        """Do nothing: what the store has acknowledged it keeps."""

    def prune(self, prefix: str) -> None:
        """Do nothing: the store has no directories."""

    def _put_shard(self, key: str, data: bytes) -> None:
        """Write a shard, which the store may spoil although it says that it has it."""
        if self.faults.draw(self.process, OF_SHARDS):
            self.process.step()
            self.process.note(f"put {key}: the store spoils it")
            self.bucket.put(self.process.name, key, data)
            self.bucket.spoiled.add(key)
        else:
            self._write(f"put {key}", key, lambda: self._put_good(key, data))

    def _put_good(self, key: str, data: bytes) -> None:
        self.bucket.put(self.process.name, key, data)
        self.bucket.spoiled.discard(key)

    def _put_all(self, objects: Mapping[str, bytes], names: Sequence[str]) -> None:
        for name in names:
            self.bucket.put(self.process.name, name, objects[name])

    def _delete_all(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.bucket.delete(self.process.name, key)

    def _read(self, what: str) -> None:
        process = self.process
        process.step()
        self._window = ""
        fault = self.faults.draw(process, OF_READS)
        process.note(f"{what}{f': {fault}' if fault else ''}")
        if fault == "kill before":
            process.kill()
        elif fault == "refused":
            raise StoreUnavailable(f"cannot {what}: simulated")
        elif fault == "stall":
            process.sleep(self.faults.stall_s())

    def _write(self, what: str, key: str, apply: Callable[[], None]) -> None:
        process = self.process
        is_in_window = bool(key) and key == self._window and not self.windows_open
        is_between = key.startswith(CHANGED) and self._window.endswith(LEAF) and not self.windows_open
        if is_in_window or is_between:
            process.check()
            if is_in_window:
                self._window = ""
        else:
            process.step()
            self._window = ""
        fault = self.faults.draw(process, OF_WRITES)
        process.note(f"{what}{f': {fault}' if fault else ''}")
        if not fault:
            apply()
            return
        if fault == "kill before":
            process.kill()
        elif fault == "stall":
            if is_in_window:  # as if it came before the look
                apply()
                process.sleep(self.faults.stall_s())
                return
            process.sleep(self.faults.stall_s())
            apply()
            return
        elif fault == "late":
            self._apply_late(what, apply)
        elif fault in ("answer lost", "kill after"):
            apply()
            if fault == "kill after":
                process.kill()
        raise StoreUnavailable(f"cannot {what}: simulated")

    def _apply_late(self, what: str, apply: Callable[[], None]) -> None:
        def arrive() -> None:
            self.bucket.late -= 1
            self.process.note(f"{what}: arrives late")
            self.bucket.is_late = True
            try:
                apply()
            finally:
                self.bucket.is_late = False

        self.bucket.late += 1
        kernel = self.process.kernel
        kernel.call_at(kernel.now + self.faults.late_s(), arrive)


def _shortly(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{keys[0]} and {len(keys) - 1} more"
