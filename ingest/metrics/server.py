"""Serves `/metrics` over HTTP."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics, start_http_server

from workers.errors import UsageError


def serve(registry: CollectorRegistry, address: str) -> Callable[[], None]:
    """Serve `/metrics` at `host:port`, with memory and processor time; return a function that stops it.

    Raises:
        UsageError: the address is in use, or does not belong to this host.
    """
    host, _, port = address.rpartition(":")
    disable_created_metrics()  # type: ignore[no-untyped-call]  # one series per counter that nobody reads
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except (OSError, OverflowError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise UsageError(
            f"cannot serve /metrics at {address}: {reason}", hint="Choose another --metrics HOST:PORT."
        ) from exc

    def stop() -> None:
        server.shutdown()
        thread.join()
        server.server_close()

    return stop
