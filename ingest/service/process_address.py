"""The address at which a running watcher or consolidator serves its metrics, as users write it."""

from __future__ import annotations

from urllib.parse import urlsplit

from workers.errors import UsageError

FROM_HINT = "Name where it serves its metrics (the setting metrics, or consolidator_metrics): --from http://HOST:PORT."


def process_address(url: str) -> str:
    """Return scheme, host and port of a URL: `http://host:9108`.

    Raises:
        UsageError: the URL is not one of a web server.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"{url!r} is not the address of a watcher or consolidator", hint=FROM_HINT)
    return f"{parts.scheme}://{parts.netloc}"
