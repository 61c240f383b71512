"""Where the tasks of one command run, from settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ingest.consolidating.runners import RunJobs, in_threads, on_cluster
from ingest.settings import Settings


@contextmanager
def open_runner(settings: Settings) -> Iterator[RunJobs]:
    """Yield a function that runs tasks in this process, or on the cluster that the settings name.

    A cluster that this starts, because the settings have a number of workers, ends with it.

    Raises:
        ClusterError: no worker answers.
    """
    if settings.scheduler is None and settings.workers is None:
        yield in_threads
        return
    from ingest.dispatch.cluster import Cluster  # deferred: distributed takes 0.4 s

    with Cluster(settings) as cluster:
        yield on_cluster(cluster.connect())
