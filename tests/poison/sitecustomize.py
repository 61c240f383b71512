"""Make decoders die of files with certain first bytes, as they would die of a real poison file.

Tests cannot produce a crash inside a library, or exhausted memory, at will. Put this directory on the path of
a process: Python imports `sitecustomize` at the start of each process.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

#: The first bytes of a payload that kills the process that decodes it.
KILLS_DECODER = b"decoding kills me"
#: The first bytes of a file that kills the process that reads it.
KILLS_READER = b"reading kills me"
#: The first bytes of a payload whose decoding exhausts memory.
EATS_MEMORY = b"eating memory"
#: The first bytes of a payload that kills only the first process that decodes it. The path of a file follows,
#: ended by a newline; the killed process creates the file as a mark for the others.
KILLS_ONCE = b"killing once: "


def _kill_if_marked(content: bytes, mark: bytes) -> None:
    if content.startswith(mark):
        os.kill(os.getpid(), signal.SIGKILL)


def _make_deadly(decoder: ModuleType) -> None:
    reader = importlib.import_module("workers.dump.source").OpenFile
    unpack, first_piece, read_at_once = decoder.unpack, reader.first_piece, reader.read_at_once

    def decode(piece: memoryview) -> None:
        head = bytes(piece[:256])
        _kill_if_marked(head, KILLS_DECODER)
        if head.startswith(EATS_MEMORY):
            blocks = [bytearray(os.urandom(1) * (64 << 20)) for _ in range(4096)]
            raise AssertionError(len(blocks))
        if head.startswith(KILLS_ONCE):
            witness = head[len(KILLS_ONCE) :].split(b"\n")[0]
            if not os.path.exists(witness):  # noqa: PTH110
                os.close(os.open(witness, os.O_CREAT | os.O_WRONLY))
                _kill_if_marked(head, KILLS_ONCE)

    def deadly_unpack(piece: memoryview, *rest: Any) -> Any:
        decode(piece)
        return unpack(piece, *rest)

    def deadly_read_at_once(root: object, file: Any, buffers: Any, position: int, nbytes: int) -> bool:
        is_read: bool = read_at_once(root, file, buffers, position, nbytes)
        if len(buffers) > 1:  # the payload is the second one
            _kill_if_marked(bytes(buffers[1][:256]), KILLS_READER)
            decode(buffers[1])
        return is_read

    def deadly_first_piece(*args: Any) -> memoryview:
        piece: memoryview = first_piece(*args)
        _kill_if_marked(bytes(piece[:256]), KILLS_READER)
        return piece

    decoder.unpack = deadly_unpack  # type: ignore[attr-defined]
    reader.read_at_once = deadly_read_at_once
    reader.first_piece = deadly_first_piece


class _Hook(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if name != "workers.tasks.entry_statistics":
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
