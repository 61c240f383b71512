"""Files that kill: on the path of a process, this makes its decoders die as they would of a real one.

A crash of a library, or more memory than there is, cannot be had at will. Python imports `sitecustomize` at
the start of each process.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

#: The first bytes of a payload that kills whoever takes it for numbers.
KILLS_DECODER = b"decoding kills me"
#: The first bytes of a file that kills whoever reads on.
KILLS_READER = b"reading kills me"
#: Whose payload cannot be had for want of memory.
EATS_MEMORY = b"eating memory"
#: Kills the first process alone. Behind it is the name of a file that is there from then on.
KILLS_ONCE = b"killing once: "


def _look_at(content: bytes, how: bytes) -> None:
    if content.startswith(how):
        os.kill(os.getpid(), signal.SIGKILL)


def _make_deadly(convert: ModuleType) -> None:
    unpack, pieces = convert.unpack, convert.OpenFile.pieces

    def deadly_unpack(piece: memoryview, *rest: Any) -> Any:
        head = bytes(piece[:256])
        _look_at(head, KILLS_DECODER)
        if head.startswith(EATS_MEMORY):
            kept = [bytearray(os.urandom(1) * (64 << 20)) for _ in range(4096)]
            raise AssertionError(len(kept))
        if head.startswith(KILLS_ONCE):
            witness = head[len(KILLS_ONCE) :].split(b"\n")[0]
            if not os.path.exists(witness):  # noqa: PTH110
                os.close(os.open(witness, os.O_CREAT | os.O_WRONLY))
                _look_at(head, KILLS_ONCE)
        return unpack(piece, *rest)

    def deadly_pieces(*args: Any) -> Iterator[memoryview]:
        for piece in pieces(*args):
            _look_at(bytes(piece[:256]), KILLS_READER)
            yield piece

    convert.unpack = deadly_unpack  # type: ignore[attr-defined]
    convert.OpenFile.pieces = deadly_pieces


class _Hook(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if name != "workers.tasks.convert":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None  # noqa: PT018
        load = spec.loader.exec_module

        def load_deadly(module: ModuleType) -> None:
            load(module)
            _make_deadly(module)

        spec.loader.exec_module = load_deadly  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Hook())
