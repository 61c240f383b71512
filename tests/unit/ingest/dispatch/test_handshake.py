"""A scheduler that hangs accepts connections and never answers."""

import socket
import time
from contextlib import closing

import pytest

from ingest.dispatch.cluster import require_answer
from workers.errors import ClusterError


def test_who_accepts_and_does_not_answer_hangs() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        started = time.monotonic()
        with pytest.raises(
            ClusterError, match=f"127.0.0.1:{port} accepts connections, and gives no answer"
        ) as told:
            require_answer(f"tcp://127.0.0.1:{port}", 0.2)
    assert time.monotonic() - started < 30  # Dask alone: without end
    assert "restart it" in told.value.hint


def test_nobody_there_is_an_error_after_the_time_that_was_given() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(OSError, match=address):
        require_answer(address, 0.2)
    with pytest.raises(ValueError, match="nowhere"):
        require_answer("tcp://nowhere", 0.2)
