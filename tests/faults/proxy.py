"""A TCP proxy on loopback that disturbs S3 as networks and overloaded services do."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

_ERRORS = {
    "503": ("503 Slow Down", "SlowDown", "Please reduce your request rate."),
    "403": ("403 Forbidden", "AccessDenied", "Access Denied"),
}


@dataclass(frozen=True, slots=True)
class NetworkCondition:
    """What the proxy does to connections."""

    mode: str = "normal"
    """`normal`, `503`, `403`, `reset`, `refuse`, `black hole`, `lose answers`, `stall` or `slow`."""
    share: float = 1.0
    """The share of connections that are affected."""
    nbytes: int = 4096
    """With `reset` and `stall`: the number of bytes after which a connection is reset, or stands still."""
    delay_s: float = 0.1
    """With `slow`: the delay of each piece of data, in seconds."""


NORMAL = NetworkCondition()


class Proxy:
    """Forwards connections to a port of this machine, for the duration of the `with` block."""

    def __init__(self, target: int, seed: int) -> None:
        self._target = target
        self._rng = random.Random(f"proxy {seed}")
        self._condition = NORMAL
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = 0
        self.delay_s = 0.0
        """The delay of each piece of data, except with `slow`. Changing it does not reset connections."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def set(self, condition: NetworkCondition) -> None:
        """Change the condition. Open connections are reset, as they are when a network changes."""
        self._call(self._set(condition))

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _set(self, condition: NetworkCondition) -> None:
        self._condition = condition
        for writer in list(self._open):
            _reset(writer)

    async def _end(self) -> None:
        self._server.close()
        for writer in list(self._open):
            _reset(writer)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        condition = self._condition if self._rng.random() < self._condition.share else NORMAL
        self._open.add(writer)
        try:
            if condition.mode == "refuse":
                return
            if condition.mode == "black hole":
                await asyncio.sleep(3600)
            elif condition.mode in _ERRORS:
                await self._answer(reader, writer, *_ERRORS[condition.mode])
            else:
                await self._forward(reader, writer, condition)
        except OSError:
            pass
        except asyncio.CancelledError:
            return  # the proxy ends; asyncio would log the error
        finally:
            self._open.discard(writer)
            if condition.mode == "normal":
                writer.close()
            else:
                _reset(writer)

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: str, code: str, text: str
    ) -> None:
        """Answer one request with an error, as S3 does."""
        with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await reader.readuntil(b"\r\n\r\n")
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{text}</Message></Error>"
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n{body}".encode())
        await writer.drain()
        writer.write_eof()
        # Reads the rest of the request: closing with unread data sends RST, and the client loses the answer.
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.read(), 0.2)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, condition: NetworkCondition
    ) -> None:
        target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._open.add(target_writer)
        loses_answers = condition.mode == "lose answers"
        pumps = [
            asyncio.create_task(self._pump(reader, target_writer, condition)),
            asyncio.create_task(self._pump(target_reader, writer, condition, loses_answers=loses_answers)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._open.discard(target_writer)
            _reset(target_writer)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        condition: NetworkCondition,
        *,
        loses_answers: bool = False,
    ) -> None:
        """Copy data until the source ends, or until the connection is to be reset."""
        remaining = condition.nbytes if condition.mode in ("reset", "stall") else None
        while data := await source.read(65536):
            if delay_s := condition.delay_s if condition.mode == "slow" else self.delay_s:
                await asyncio.sleep(delay_s)
            # An interim answer is not lost: without it the client would never send the body of the request.
            if loses_answers and not data.startswith(b"HTTP/1.1 100"):
                continue
            if remaining is not None and len(data) > remaining:
                sink.write(data[:remaining])
                await sink.drain()
                if condition.mode == "stall":
                    await asyncio.sleep(3600)
                return
            remaining = None if remaining is None else remaining - len(data)
            sink.write(data)
            await sink.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST, so that its end is not mistaken for the end of an answer."""
    tcp_socket = writer.get_extra_info("socket")
    if tcp_socket is not None and not writer.is_closing():
        with suppress(OSError):
            tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
