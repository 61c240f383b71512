"""What users of other charts expect, as it reaches Kubernetes; and what keeps roles apart."""

import logging

import pytest
from distributed import system
from distributed.worker_memory import parse_memory_limit

from tests.charts import changed, containers, environment, find, objects, of_profile, pods, quick


def test_registry_and_pull_secrets_of_an_umbrella_chart_reach_every_pod() -> None:
    for where, pod in pods(of_profile("company")):
        own = [container["image"] for container in containers(pod) if "/dump-ingest" in container["image"]]
        assert set(own) == {"registry.example.com/mirror/dump-ingest:0.1.0"}, where
        assert pod["spec"]["imagePullSecrets"] == [{"name": "regcred"}], where


def test_pod_settings_of_a_role_reach_this_role_alone() -> None:
    rendered = of_profile("company")
    watcher = find(rendered, "Deployment", "-watcher")
    pod = watcher["spec"]["template"]["spec"]
    assert watcher["metadata"]["annotations"] == {"reloader.stakater.com/auto": "true"}
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert pod["dnsConfig"]["options"] == [{"name": "ndots", "value": "1"}]
    assert pod["initContainers"][0]["name"] == "wait-for-mount"
    worker = find(rendered, "Deployment", "-worker")["spec"]
    assert (worker["minReadySeconds"], worker["revisionHistoryLimit"]) == (10, 2)
    assert worker["template"]["spec"]["hostAliases"][0]["ip"] == "10.0.0.9"
    assert "hostNetwork" not in worker["template"]["spec"]
    for container in containers(find(rendered, "Deployment", "-worker")["spec"]["template"]):
        assert container["envFrom"] == [{"configMapRef": {"name": "company-proxy"}}]
    (consolidator,) = containers(find(rendered, "Deployment", "-consolidator")["spec"]["template"])
    assert environment(consolidator)["DUMP_INGEST_EXPECTED_RANKS"] == "64"


def test_monitors_keep_releases_apart() -> None:
    for manifest in of_profile("monitoring"):
        if manifest["kind"] in {"PodMonitor", "ServiceMonitor"}:
            for endpoint in manifest["spec"].get("podMetricsEndpoints", manifest["spec"].get("endpoints")):
                targets = {rule["targetLabel"]: rule.get("replacement") for rule in endpoint["relabelings"]}
                assert targets["run"] == "run1"
                assert "node" in targets


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


def test_sidecar_uses_the_volume_of_the_training_pod() -> None:
    rendered = objects(changed(quick("sidecar"), watcher__sidecar__dumpVolume="scratch"))
    (pod,) = (pod for where, pod in pods(rendered) if where.startswith("ConfigMap/"))
    assert "dump-ingest-dump" not in {volume["name"] for volume in pod["spec"]["volumes"]}
    assert "scratch" in {mount["name"] for mount in containers(pod)[-1]["volumeMounts"]}


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


def test_sidecar_says_which_group_the_training_pod_needs() -> None:
    text = find(objects(changed(quick("sidecar"), **STORE_OF_GROUP)), "ConfigMap", "-sidecar")["data"][
        "pod.yaml"
    ]
    assert (
        "# The claim of the store is given to a group: add 3000 to securityContext.supplementalGroups" in text
    )


def test_helm_test_looks_at_the_dump_of_a_node_of_the_watchers() -> None:
    pod = find(of_profile("daemonset"), "Pod", "-doctor")["spec"]
    assert "/dumps" in pod["containers"][0]["args"]
    assert pod["nodeSelector"] == {"node.kubernetes.io/role": "npu"}


def test_openshift_chooses_all_users_but_that_of_the_dump() -> None:
    rendered = of_profile("openshift")
    users = {
        where.rpartition("-")[2]: pod["spec"]["securityContext"].get("runAsUser")
        for where, pod in pods(rendered)
    }
    assert users == {"watcher": 1000, "scheduler": None, "consolidator": None, "doctor": 1000}
    (constraints,) = (manifest for manifest in rendered if manifest["kind"] == "SecurityContextConstraints")
    assert constraints["users"] == ["system:serviceaccount:train:run1-dump-ingest"]
