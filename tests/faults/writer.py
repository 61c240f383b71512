"""Play the training job of a story with the files of a real dump, and record what is written."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.faults.story import Action, Job, Op
from tests.stores import tensor_name
from tests.xxh3_forgery import forged

#: The dump whose files are written repeatedly: one rank and iteration of it serves all ranks and steps.
RECORDED = "lenet-4rank"
_ITERATION = "rank_0/LeNet/0/1"
#: Elements (float32) of a file that all ranks share: just over 4 MiB, from which on the pool takes it.
_SHARED_SIZE = 1_100_000
#: Files of a hostile rank: as if they were in the pool, or in the dump or the store of another rank.
_HOSTILE_NAMES = (
    "pool.step_1.zarr.json",
    tensor_name("Parameter.weight0-..-..-..-rank_0-LeNet-0-1", time=0),
    tensor_name("Parameter.pool_step_1_float32_c_0", time=0),
)
#: In every fifth step, the last rank has a copy that differs in one element.
_SPOILED_EVERY = 5


@dataclass
class Writer:
    """Writes files below `dump`, and records their contents as the truth for the judge."""

    recorded: Path
    dump: Path
    seed: int
    job: Job
    _names: list[str] = field(init=False)
    _shared_names: list[str] = field(init=False)
    _values: dict[str, npt.NDArray[Any]] = field(init=False)
    _grown: dict[Path, int] = field(default_factory=dict)
    _open: dict[Path, int] = field(default_factory=dict)
    written: dict[str, set[bytes]] = field(default_factory=dict)
    """By path, the digests of all complete contents that a file ever had, added before they are written."""
    final: dict[str, bytes] = field(default_factory=dict)
    """By path, the digest of the content after the job's last action on the file."""
    torn: set[str] = field(default_factory=set)
    """Files that will never be complete."""
    vanished: set[str] = field(default_factory=set)
    """Files that were removed."""
    forged: set[str] = field(default_factory=set)
    """Files that a hostile rank wrote, and that nobody wrote again."""
    error: BaseException | None = None
    """The error that ended a thread of the job, if any."""

    def __post_init__(self) -> None:
        names = sorted(path.name for path in (self.recorded / _ITERATION).iterdir())
        self._names = random.Random(f"files {self.seed}").sample(names, min(self.job.files, len(names)))
        # Read here, before threads start: numpy's parser of headers is not thread-safe before Python 3.12.
        self._values = {name: np.load(self.recorded / _ITERATION / name) for name in self._names}
        self._shared_names = [
            tensor_name(f"Parameter.weight{number}", time=number) for number in range(self.job.shared_files)
        ]
        self._names += [*self._shared_names, *_HOSTILE_NAMES]

    def prepare(self, ranks: int) -> None:
        """Write the files that belong to no step: graphs and execution order."""
        for rank in range(ranks):
            for name in ("graphs", "execution_order"):
                directory = self.dump / f"rank_{rank}" / name
                shutil.copytree(self.recorded / "rank_0" / name, directory)
                for path in directory.iterdir():
                    relative, content = str(path.relative_to(self.dump)), digest(path.read_bytes())
                    self.written[relative], self.final[relative] = {content}, content

    def play(self, actions: Sequence[Action], started: float, stop: threading.Event) -> None:
        """Carry out the actions of one rank at their times; `started` is time 0 on the monotonic clock.

        Each rank has its own thread. When `stop` is set, no new step begins, but steps that have begun are
        finished without further delays.
        """
        try:
            begun: set[tuple[int, int]] = set()
            for action in actions:
                due_s = started + action.at_s - time.monotonic()
                if due_s > 0 and not stop.is_set():
                    stop.wait(due_s)
                if stop.is_set() and (action.rank, action.step) not in begun:
                    continue
                begun.add((action.rank, action.step))
                self.do(action)
        except BaseException as exc:  # noqa: BLE001  (the campaign raises it)
            self.error = exc

    def do(self, action: Action) -> None:
        """Carry out one action on one file."""
        relative = self.path_of(action)
        path = self.dump / relative
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = self.content(action)
        if action.op is Op.SNEAK:
            self._sneak(relative, path, content)
            return
        self.forged.discard(relative)
        if action.op is not Op.TEAR:
            self.written.setdefault(relative, set()).add(digest(content))
        match action.op:
            case Op.WRITE | Op.SHRINK | Op.FORGE:
                self.torn.discard(relative)
                self._write(path, content)
                self.final[relative] = digest(content)
                if action.op is Op.FORGE:
                    self.forged.add(relative)
            case Op.RENAME:
                self.torn.discard(relative)
                temporary = path.with_name(f"{path.name}.part")
                self._write(temporary, content)
                temporary.replace(path)
                self.final[relative] = digest(content)
            case Op.GROW:
                self._grow(path, content)
                self.final.setdefault(relative, digest(content))
            case Op.TEAR:
                self.torn.add(relative)
                self._write(path, content[: len(content) // 2])
                self.final[relative] = digest(content[: len(content) // 2])
            case Op.VANISH:
                self.vanished.add(relative)
                self.final.pop(relative, None)
                path.unlink(missing_ok=True)
        if action.shift_s and path.exists():
            modified = time.time() + action.shift_s
            os.utime(path, (modified, modified))

    def path_of(self, action: Action) -> str:
        """Return the path of the file below the dump."""
        return f"rank_{action.rank}/LeNet/0/{action.step}/{self._names[action.file]}"

    def content(self, action: Action) -> bytes:
        """Return what an action writes: a recorded tensor with a few elements that identify the action."""
        name = self._names[action.file]
        if name in _HOSTILE_NAMES:
            return _hostile_content(name)
        if name in self._shared_names:
            genuine = self._shared_content(action, name)
            return _forged(genuine) if action.op is Op.FORGE else genuine
        values = self._values[name].copy()
        number = blake2b(
            f"{self.seed} {action.rank} {action.step} {action.attempt} {name}".encode(), digest_size=8
        )
        rng = np.random.default_rng(int.from_bytes(number.digest()))
        flat = values.reshape(-1)
        # Every fourth file stays as recorded: the store keeps equal tensors once, which must also work.
        if flat.size and action.file % 4:
            mark = rng.normal(size=min(4, flat.size)) if flat.dtype.kind == "f" else rng.integers(0, 100, 1)
            flat[-len(mark) :] = mark.astype(flat.dtype)
        if action.op is Op.SHRINK and flat.size > 1:
            values = flat[: flat.size // 2]
        return _npy(values)

    def _shared_content(self, action: Action, name: str) -> bytes:
        """Return what an action writes into a file that all ranks share: the rank does not matter for it."""
        number = blake2b(f"{self.seed} {action.step} {action.attempt} {name}".encode(), digest_size=8)
        values = np.random.default_rng(int.from_bytes(number.digest())).normal(size=_SHARED_SIZE)
        if action.step % _SPOILED_EVERY == 0 and action.rank == self.job.ranks - 1:
            values[action.step] = action.rank
        if action.op is Op.SHRINK:
            values = values[: _SHARED_SIZE // 2]
        return _npy(values.astype(np.float32))

    def _write(self, path: Path, content: bytes) -> None:
        if path in self._open:
            # The job has restarted: the file will not grow further.
            os.close(self._open.pop(path))
            self._grown[path] = 4
        if path.exists():
            path.chmod(0o600)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(fd, content[: len(content) // 2])
        time.sleep(0.001)
        os.write(fd, content[len(content) // 2 :])
        os.close(fd)
        path.chmod(0o400)

    def _sneak(self, relative: str, path: Path, content: bytes) -> None:
        """Write into a file in place, and put its time back; nothing if it is not whole, or gone."""
        try:
            status = path.stat()
        except FileNotFoundError:
            return
        if status.st_size != len(content) or relative in self.torn or path in self._open:
            return
        self.written.setdefault(relative, set()).add(digest(content))
        path.chmod(0o600)
        path.write_bytes(content)
        path.chmod(0o400)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        self.final[relative] = digest(content)

    def _grow(self, path: Path, content: bytes) -> None:
        if self._grown.get(path) == 4:
            return
        if path not in self._open:
            self._open[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        quarter = self._grown.get(path, 0)
        cut = len(content) * quarter // 4, len(content) * (quarter + 1) // 4
        os.write(self._open[path], content[slice(*cut)])
        self._grown[path] = quarter + 1
        if quarter == 3:
            os.close(self._open.pop(path))
            path.chmod(0o400)


def _forged(content: bytes) -> bytes:
    """Return a file whose tensor has the digests of that of another file, and other values."""
    header_nbytes = len(content) - 4 * _SHARED_SIZE
    return content[:header_nbytes] + forged(content[header_nbytes:])


def _hostile_content(name: str) -> bytes:
    if not name.endswith(".npy"):
        return json.dumps({"zarr_format": 3, "node_type": "array", "shape": [_SHARED_SIZE]}).encode()
    return _npy(np.full(7, len(name), np.float32))


def _npy(values: npt.NDArray[Any]) -> bytes:
    """Return the content of a file with these values."""
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def digest(content: bytes) -> bytes:
    """Return the digest by which contents are compared."""
    return blake2b(content, digest_size=16).digest()
