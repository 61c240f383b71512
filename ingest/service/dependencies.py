"""What happens when the store or the cluster does not answer: it is reported, and waited for or given up."""

from __future__ import annotations

from dataclasses import dataclass

from ingest.service.store_probe import StoreProbe
from ingest.steps.events import DependencyDown
from workers.errors import ClusterError, StoreError
from workers.events import Observer


@dataclass(slots=True)
class Dependencies:
    """Store and cluster, as far as the service has to wait for them."""

    notify: Observer
    probe: StoreProbe
    retry_forever: bool = False
    """Whether to wait for what does not answer, rather than raise."""

    def endure(self, error: StoreError | ClusterError) -> None:
        """Report an error, so that the same is tried again; raise it unless everything is tried for ever."""
        if not self.retry_forever:
            raise error
        self.report(error)

    def report(self, error: StoreError | ClusterError) -> None:
        """Report an error; if the store did not answer, begin to ask when it is back."""
        self.probe.report_failure(error)
        self.notify(DependencyDown(error))
