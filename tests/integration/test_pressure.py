"""A store that is slow: lag grows, and the memory of the service is bounded, whatever waits."""

from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from bench.running import sample
from tests import checker
from tests.cli import own_workers, start
from tests.faults.proxy import Proxy
from tests.servers.ceph import CephS3, S3Bucket
from tests.servers.process import free_port, http_get
from tests.stores import MadeDump, tensor_name

pytestmark = pytest.mark.s3

#: Names, sizes and times of the files that wait are held; see docs/operation.md.
_FILE_NBYTES = 2048
#: What comes and goes with listing, in any case.
_SLACK_NBYTES = 12 * 1024 * 1024


@pytest.mark.campaign
def test_a_slow_store_makes_lag_grow_and_not_memory(
    tmp_path: Path, ceph: CephS3, s3_bucket: S3Bucket, s3_environment: dict[str, str]
) -> None:
    made = MadeDump(tmp_path / "dump")
    values = np.zeros(262_144, "<f4")

    def dump(steps: range) -> None:
        for step in steps:
            made.add(values + step, tensor_name(time=step), step=step)

    def metric(name: str) -> float:
        lines = http_get(port, "/metrics")[1].decode().splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith(f"{name}{{"))

    def pending() -> float:
        return metric("dump_ingest_watcher_pending_steps")

    port = free_port()
    upstream = urlsplit(ceph.endpoint_url).port
    assert upstream is not None
    with Proxy(upstream, seed=0) as proxy:
        env = {
            **s3_environment,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
            "DUMP_INGEST_INFLIGHT_SIZE": "4MiB",
            "DUMP_INGEST_METRICS": f"127.0.0.1:{port}",
        }
        dump(range(3))
        with start("watch", made.root, "--store", s3_bucket.url, env=env) as watch:
            watch.wait_until(lambda: len(watch.events("step_committed")) == 3, timeout_s=60)
            (worker,) = own_workers(watch.pid)
            proxy.delay_s = 0.05
            dump(range(3, 10))
            watch.wait_until(lambda: pending() > 4)
            before = sample(watch.pid).rss_nbytes, sample(worker).rss_nbytes
            done = len(watch.events("step_committed"))
            dump(range(10, 22))
            watch.wait_until(lambda: pending() > 8)
            assert (
                metric("dump_ingest_watcher_newest_step") - metric("dump_ingest_watcher_committed_step") > 8
            )
            watch.wait_until(lambda: len(watch.events("step_committed")) > done)  # slow, and not away
            grown = sample(watch.pid).rss_nbytes - before[0]
            assert grown < 12 * _FILE_NBYTES + _SLACK_NBYTES < 20 * values.nbytes
            proxy.delay_s = 0.0
            watch.wait_until(lambda: pending() == 0, timeout_s=120)
            assert sample(worker).rss_nbytes - before[1] < _SLACK_NBYTES
            assert watch.terminate() == 0
    checker.check(checker.download(s3_bucket, tmp_path / "store"), made.root)
