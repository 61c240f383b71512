"""What users of other charts expect, as it reaches Kubernetes; and what keeps roles apart."""

import logging

import pytest
from distributed import system
from distributed.worker_memory import parse_memory_limit

from tests.charts import changed, containers, find, objects, of_profile, pods, quick


def test_sidecar_is_scraped_and_the_ports_of_the_job_stay_open() -> None:
    rendered = objects(changed(quick("sidecar"), monitoring__podMonitor__enabled=True))
    monitor = find(rendered, "PodMonitor", "-watcher")["spec"]
    assert monitor["selector"]["matchLabels"] == {"run1-dump-ingest-sidecar": "true"}
    assert [endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]] == ["di-metrics", "di-http-0"]
    (*_, job) = find(rendered, "NetworkPolicy", "-watcher")["spec"]["ingress"]
    spans = [(port["port"], port["endPort"]) for port in job["ports"] if port["protocol"] == "TCP"]
    assert spans == [(1, 8799), (8803, 9107), (9109, 65535)]
    isolated = objects(changed(quick("sidecar"), networkPolicy__trainingPods="isolated"))
    assert (
        len(find(isolated, "NetworkPolicy", "-watcher")["spec"]["ingress"]) == 3
    )  # Dask, metrics, and the consolidator
    none = objects(changed(quick("sidecar"), networkPolicy__trainingPods="none"))
    assert not [manifest for manifest in none if manifest["metadata"]["name"] == "run1-dump-ingest-watcher"]


def test_dask_ends_a_worker_before_the_kernel_ends_its_container(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = containers(find(of_profile("deployment"), "Deployment", "-worker")["spec"]["template"])[0]
    (limit,) = (word.partition("=")[2] for word in worker["args"] if word.startswith("--memory-limit="))
    monkeypatch.setattr(system, "MEMORY_LIMIT", 2 * 2**30)
    parsed = parse_memory_limit(limit, 1, logger=logging.getLogger(__name__))
    assert parsed == int(0.85 * 2 * 2**30)


STORE_OF_GROUP = {
    "storage__existingClaim": "store",
    "config__store": "/store/run.zarr",
    "storage__fsGroup": 3000,
}


@pytest.mark.parametrize("example", ["deployment", "daemonset", "standalone"])
def test_claim_of_the_store_becomes_writable_by_its_group(example: str) -> None:
    rendered = objects(changed(quick(example), **STORE_OF_GROUP))
    for where, pod in pods(rendered):
        mounts = {mount["name"] for own in containers(pod) for mount in own["volumeMounts"]}
        group = pod["spec"]["securityContext"].get("fsGroup")
        assert group == (3000 if "dump-ingest-store" in mounts else None), where


def test_group_of_the_store_does_not_get_the_dump() -> None:
    """A watcher that deletes mounts the dump writable, and `fsGroup` applies to all claims of a pod."""
    values = changed(quick("deployment"), **STORE_OF_GROUP, config__after_commit="delete")
    watcher = find(objects(values), "Deployment", "-watcher")
    context = watcher["spec"]["template"]["spec"]["securityContext"]
    assert "fsGroup" not in context
    assert context["supplementalGroups"] == [2000, 3000]
