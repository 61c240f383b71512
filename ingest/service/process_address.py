"""The address at which a running watcher or consolidator serves its metrics, as users write it."""

from __future__ import annotations

from urllib.parse import urlsplit

from workers.errors import UsageError

FROM_HINT = (
    "Name where it serves its metrics (the setting metrics, or consolidator_metrics): --from HOST:PORT."
)


def process_address(url: str) -> str:
    """Return scheme, host and port of a URL, or of `host:9108`: `http://host:9108`.

    Raises:
        UsageError: it is neither the URL of a web server nor a host with a port.
    """
    has_scheme = "://" in url
    try:
        parts = urlsplit(url if has_scheme else f"http://{url}")
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or not (has_scheme or port):
        raise UsageError(f"{url!r} is not the address of a watcher or consolidator", hint=FROM_HINT)
    return f"{parts.scheme}://{parts.netloc}"
