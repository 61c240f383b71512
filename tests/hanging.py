"""Regular files that hang when they are read, as in a file system that has gone."""

import ctypes
import os
import select
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

_C = ctypes.CDLL(None, use_errno=True)
# linux/fanotify.h
_CLASS_CONTENT, _CLOEXEC = 0x04, 0x01
_MARK_ADD, _ACCESS_PERM = 0x01, 0x20000
_ALLOW = 0x01
_AT_FDCWD = -100
#: Length, version, reserved, length of metadata, mask, file descriptor, process.
_EVENT = struct.Struct("=IBBHQii")
_RESPONSE = struct.Struct("=iI")


def cannot_hang() -> str:
    """Return why files cannot be made to hang here; "" if they can."""
    group = _C.fanotify_init(_CLASS_CONTENT | _CLOEXEC, os.O_RDONLY)
    if group < 0:
        return f"files that hang when they are read need fanotify ({os.strerror(ctypes.get_errno())})"
    os.close(group)
    return ""


class HangingFiles:
    """Has the kernel ask before a file is read, and answers to this process only: all others wait for ever.

    A context manager. They wait within `read`, in uninterruptible sleep, where only SIGKILL reaches them.
    What still waits at the end of the block goes on.
    """

    def __init__(self, on_hang: Callable[[], None] = lambda: None) -> None:
        """Have no file hang yet.

        Args:
            on_hang: called, in a thread, with each read that hangs.
        """
        self._on_hang = on_hang
        self._group = _C.fanotify_init(_CLASS_CONTENT | _CLOEXEC, os.O_RDONLY)
        self._asked: list[int] = []
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._end, self._is_over = os.pipe()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._is_over)
        self._thread.join()
        os.close(self._end)
        os.close(self._group)  # the kernel lets all go on
        for fd in self._asked:
            os.close(fd)

    def add(self, path: Path) -> None:
        """Have a file hang."""
        name = ctypes.c_char_p(os.fsencode(path))
        mask = ctypes.c_uint64(_ACCESS_PERM)
        if _C.fanotify_mark(self._group, _MARK_ADD, mask, _AT_FDCWD, name) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))

    def _answer(self) -> None:
        while self._is_asked():
            events = os.read(self._group, 4096)
            for at in range(0, len(events), _EVENT.size):
                *_, fd, pid = _EVENT.unpack_from(events, at)
                if pid == os.getpid():
                    os.write(self._group, _RESPONSE.pack(fd, _ALLOW))
                    os.close(fd)
                else:
                    self._asked.append(fd)
                    self._on_hang()

    def _is_asked(self) -> bool:
        """Wait for a question of the kernel; return False at the end of the block."""
        ready = select.select([self._group, self._end], [], [])[0]
        return self._end not in ready
