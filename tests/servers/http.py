"""An HTTP server in a thread of the test, which answers as a function says."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Request:
    """What a client has sent."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class HttpServer:
    """Listens on a free port of the loopback interface, and answers while the `with` block runs."""

    def __init__(self, answer: Callable[[Request], tuple[int, bytes]]) -> None:
        """Listen; `answer` returns the status and the body for a request, and is called in its thread."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, content = answer(Request(self.path, dict(self.headers), body))
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4")  # as Prometheus wants it
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Do not log requests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return self._server.server_port

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The URL without a path."""
        return f"http://{self.address}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
