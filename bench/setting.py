"""The directories, servers and clusters that a run of the benchmarks uses."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import dask
from distributed import Client, LocalCluster
from s3fs import S3FileSystem

from bench.load import Load, build
from ingest.dispatch.cluster import Cluster
from ingest.dispatch.submitter import DispatchLimits
from ingest.layouts.detect import find_dump
from ingest.service.offering import ServiceOptions
from ingest.service.one_shot import ingest_once
from ingest.service.service import Service
from ingest.settings import Settings
from ingest.steps.decide import CompletenessPolicy, StepPolicy
from tests.servers.ceph import CephS3, Store
from workers.model import MIB
from workers.rules.values import RuleSet
from workers.store.model import CommitSummary, Grid
from workers.store.opening import open_objects, resolve

PROFILE = Path(__file__).parent.parent / "tests" / "data" / "tinybert-large.profile.csv.xz"
#: Worker processes: as many as the reference machine of the floors has cores.
WORKERS = 2


@dataclass
class Setting:
    """One run. The large profile is built on first use, and shared by all parts."""

    disk: Path
    """An empty directory on the disk that is measured."""
    memory: Path | None
    """An empty directory in memory; None without a tmpfs."""
    rounds: int
    quick: bool
    minutes: float = 20.0
    """How long the soak lasts."""
    load_share: float = 0.9
    """The load of the soak, as a share of the measured capacity."""
    in_ceph: bool = False
    """Whether the store of the soak is in Ceph instead of a directory."""
    dump: Path | None = None
    """What is packed by us and by archivers; None: a dump that is built."""
    _targets: int = field(default=0, repr=False)

    @cached_property
    def load(self) -> Load:
        """One iteration of the large profile, on the disk."""
        return build(PROFILE, self.disk / "large")

    @property
    def fast(self) -> Path:
        """A directory in memory, or on the disk without a tmpfs."""
        return self.memory or self.disk

    @contextmanager
    def target(self, parent: Path | None = None) -> Iterator[Path]:
        """Yield a path that does not exist yet, on the disk or in `parent`; remove it at the end."""
        self._targets += 1
        path = (parent or self.disk) / f"target-{self._targets}"
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def store_for(setting: Setting) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the URL for a new store, and the environment variables of processes that use it."""
    if not setting.in_ceph:
        with setting.target() as path:
            yield str(path), {}
        return
    with object_storage(on_disk=True) as (ceph, variables):
        yield ceph.make_bucket("bench").url, variables


@contextmanager
def object_storage(*, on_disk: bool = False) -> Iterator[tuple[CephS3, dict[str, str]]]:
    """Yield a server and the environment variables of its clients; this process has them meanwhile."""
    kind: Store = "bluestore" if on_disk else "memstore"
    with CephS3(store=kind) as ceph, environment(variables := credentials(ceph)):
        # Both may remember the address of an earlier server.
        open_objects.cache_clear()
        S3FileSystem.clear_instance_cache()
        yield ceph, variables


def credentials(ceph: CephS3) -> dict[str, str]:
    """Return the environment variables of a client of this server."""
    return {
        "AWS_ACCESS_KEY_ID": ceph.access_key,
        "AWS_SECRET_ACCESS_KEY": ceph.secret_key,
        "AWS_ENDPOINT_URL": ceph.endpoint_url,
        "AWS_DEFAULT_REGION": "default",
    }


#: Freed megabytes stay with the process, as in workers that a command starts.
_MALLOC = {
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 16 * MIB,
    "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": 4 * MIB,
}


@contextmanager
def workers(count: int = WORKERS, scheduler: str | None = None) -> Iterator[Client]:
    """Yield a client of running workers with compiled kernels: new ones, or those of a running scheduler."""
    with ExitStack() as at_end:
        if scheduler is None:
            at_end.enter_context(dask.config.set(_MALLOC))
            local = LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=":0")
            scheduler = at_end.enter_context(local).scheduler_address
        client = at_end.enter_context(Cluster(Settings(scheduler=scheduler))).connect()
        client.wait_for_workers(count, timeout=60)
        yield client


def ingest(
    client: Client,
    dump: Path,
    store: str | Path,
    grid: Grid | None = None,
    *,
    rules: RuleSet | None = None,
    sketches: bool = False,
    layout: str = "",
) -> list[CommitSummary]:
    """Ingest a finished dump with running workers; without rules and sketches unless they are asked for."""
    policy = StepPolicy(CompletenessPolicy(quiet_s=0, settle_s=0))
    limits = DispatchLimits(1024 * MIB)
    options = ServiceOptions(policy, grid or Grid(), limits, rules=rules, sketches=sketches)
    objects = open_objects(resolve(str(store)))
    service = Service(find_dump(dump, layout=layout), objects, lambda: client, options)
    report = ingest_once(service, threading.Event())
    assert not report.failures, report.failures
    assert report.stopped_by is None, report.stopped_by
    assert report.commits
    return report.commits


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, which worker processes inherit, and restore them at the end."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
