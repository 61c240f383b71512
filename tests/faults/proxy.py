"""A TCP proxy on loopback that does to S3 what networks and overloaded services do."""

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
class Weather:
    """What happens to connections."""

    mode: str = "fine"
    """`fine`, `503`, `403`, `reset`, `refuse`, `black hole`, `deaf` (answers are lost), `slow`."""
    share: float = 1.0
    """The share of connections to which it happens."""
    nbytes: int = 4096
    """After how many bytes a connection is reset."""
    delay_s: float = 0.1
    """By how much each piece is late when it is slow."""


FINE = Weather()


class Proxy:
    """Passes connections on to a port of this machine, as long as the `with` block lasts."""

    def __init__(self, target: int, seed: int) -> None:
        self._target = target
        self._rng = random.Random(f"proxy {seed}")
        self._weather = FINE
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = 0
        self.delay_s = 0.0
        """By how much each piece is late, whatever the weather; no connection breaks when it is changed."""

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

    def set(self, weather: Weather) -> None:
        """Change the weather; connections that were open break, as they do when a network changes."""
        self._call(self._set(weather))

    def _call(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    async def _set(self, weather: Weather) -> None:
        self._weather = weather
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
        weather = self._weather if self._rng.random() < self._weather.share else FINE
        self._open.add(writer)
        try:
            if weather.mode == "refuse":
                return
            if weather.mode == "black hole":
                await asyncio.sleep(3600)
            elif weather.mode in _ERRORS:
                await self._answer(reader, writer, *_ERRORS[weather.mode])
            else:
                await self._pass_on(reader, writer, weather)
        except OSError:
            pass
        except asyncio.CancelledError:
            return  # the proxy ends; asyncio would complain
        finally:
            self._open.discard(writer)
            if weather.mode == "fine":
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
        with suppress(TimeoutError):  # or its last words are lost with the body that was not read
            await asyncio.wait_for(reader.read(), 0.2)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, weather: Weather
    ) -> None:
        above, below = await asyncio.open_connection("127.0.0.1", self._target)
        self._open.add(below)
        pumps = [
            asyncio.create_task(self._pump(reader, below, weather)),
            asyncio.create_task(self._pump(above, writer, weather, deaf=weather.mode == "deaf")),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._open.discard(below)
            _reset(below)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        weather: Weather,
        *,
        deaf: bool = False,
    ) -> None:
        left = weather.nbytes if weather.mode == "reset" else None
        while data := await source.read(65536):
            if delay_s := weather.delay_s if weather.mode == "slow" else self.delay_s:
                await asyncio.sleep(delay_s)
            # An interim answer passes, or the body of the request would never be sent.
            if deaf and not data.startswith(b"HTTP/1.1 100"):
                continue
            if left is not None and len(data) > left:
                sink.write(data[:left])
                await sink.drain()
                return
            left = None if left is None else left - len(data)
            sink.write(data)
            await sink.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST, so that nobody takes it for the end of an answer."""
    found = writer.get_extra_info("socket")
    if found is not None and not writer.is_closing():
        with suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
