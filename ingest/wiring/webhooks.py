"""Posts of incidents, from settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ingest.findings.incidents import incidents
from ingest.reader.catalog import Catalog
from ingest.reporting.logs import PostLog
from ingest.reporting.webhook import IncidentPosts, Webhook
from ingest.settings import Settings
from ingest.wiring.stores import address_of_store
from workers.store.opening import open_objects


@contextmanager
def open_webhook(settings: Settings) -> Iterator[Webhook | None]:
    """Post incidents to the webhook that the settings name, and log what becomes of them; None for none."""
    if settings.webhook is None:
        yield None
        return
    catalog = Catalog(open_objects(address_of_store(settings)))
    posts = IncidentPosts(lambda: incidents(catalog), settings.webhook_severity)
    page_url = settings.page_url or ""
    with Webhook(settings.webhook, catalog.url, settings.webhook_severity, posts, page_url) as webhook:
        webhook.observers.append(PostLog().observe)
        yield webhook
