"""Where incidents are on the page that `dump-ingest serve` shows."""

from __future__ import annotations

from urllib.parse import quote, urlencode


def incidents_link(page_url: str, store: str, **chosen: object) -> str:
    """Return the URL of incidents; "" without the URL of a page.

    Args:
        page_url: by what URL people reach the page; "" if there is none.
        store: the URL of the store, whose last part is the name of the run.
        chosen: which incidents: an `id`, or a `rank` and `step` that they were seen on.
    """
    run = quote(store.rstrip("/").rpartition("/")[2], safe="")
    return f"{page_url.rstrip('/')}/runs/{run}/incidents?{urlencode(chosen)}" if page_url else ""
