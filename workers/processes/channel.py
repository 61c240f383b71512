"""Messages between two processes over a pair of connected sockets: a length, and as many bytes."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

_LENGTH = struct.Struct("<Q")


def packed(message: bytes) -> bytes:
    """Return a message as it is sent."""
    return _LENGTH.pack(len(message)) + message


class Channel:
    """One end. One thread sends and receives; any thread may close it."""

    def __init__(self, end: socket.socket) -> None:
        """Take over one of the sockets."""
        self._end = end

    def send(self, message: bytes) -> None:
        """Send a message.

        Raises:
            EOFError: the other process has ended, or the channel is closed.
        """
        try:
            self._end.sendall(_LENGTH.pack(len(message)))
            self._end.sendall(message)
        except OSError as exc:
            raise EOFError from exc

    def receive(self) -> bytearray:
        """Wait for a message and return it.

        Raises:
            EOFError: the other process has ended, or the channel is closed.
        """
        (length,) = _LENGTH.unpack(self._receive_exactly(_LENGTH.size))
        return self._receive_exactly(length)

    def close(self) -> None:
        """Have both ends see the end of the channel, also a thread that waits for a message."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _receive_exactly(self, nbytes: int) -> bytearray:
        received = bytearray(nbytes)
        view = memoryview(received)
        while view.nbytes:
            try:
                n = self._end.recv_into(view)
            except OSError as exc:
                raise EOFError from exc
            if not n:
                raise EOFError
            view = view[n:]
        return received
