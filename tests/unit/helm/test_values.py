"""Wrong values are refused before anything is installed, by a message that names them."""

from typing import Any

import helm_python
import pytest
import yaml

from tests.charts import (
    changed,
    containers,
    data,
    find,
    objects,
    pods,
    quick,
    render,
)

#: On top of an example: what is wrong, and what the message must say.
WRONG: list[tuple[str, dict[str, Any], list[str]]] = [
    ("daemonset", {"config__store": ""}, ["config.store", "required"]),
    ("daemonset", {"config__store": "run.zarr"}, ["/config/store"]),
    ("daemonset", {"config__store": "memory://x"}, ["/config/store"]),
    ("daemonset", {"config__stroe": "s3://b/x"}, ["/config", "stroe"]),
    ("daemonset", {"config__quiet_s": "soon"}, ["/config/quiet_s", "number"]),
    ("daemonset", {"config__quiet_s": -1}, ["/config/quiet_s"]),
    ("daemonset", {"config__poll_s": 0}, ["/config/poll_s"]),
    ("daemonset", {"config__order": "random"}, ["/config/order", "oldest"]),
    ("daemonset", {"config__inflight_size": "2 gallons"}, ["/config/inflight_size"]),
    ("daemonset", {"config__chunk_size": 10}, ["/config/chunk_size", "4,096"]),
    ("daemonset", {"config__rank_map": {"a": 1}}, ["/config/rank_map", "'a'"]),
    ("daemonset", {"config__replace": "yes"}, ["/config/replace", "boolean"]),
    ("daemonset", {"config__store_options": {"secret": "hunter2"}}, ["/config/store_options/secret"]),
    ("daemonset", {"config__scheduler": "tcp://a:1"}, ["config.scheduler", "scheduler.address"]),
    ("daemonset", {"config__metrics": ":1"}, ["config.metrics", "watcher.metrics"]),
    ("daemonset", {"config__host": "n1"}, ["config.host", "node"]),
    ("daemonset", {"config__rules": "a.yaml"}, ["config.rules", "anomalyRules"]),
    ("daemonset", {"config__worker_resources": {"a": 1}}, ["config.worker_resources", "nodeLocal"]),
    ("daemonset", {"config__store": "/store/x"}, ["config.store", "storage.existingClaim"]),
    ("deployment", {"config__store": "/elsewhere/x"}, ["config.store", "storage.mountPath"]),
    ("daemonset", {"existingConfigMap": "mine"}, ["config", "existingConfigMap"]),
    ("external-scheduler", {"anomalyRules__builtin": False}, ["anomalyRules", "existingConfigMap"]),
    ("daemonset", {"existingConfigMap": "Not A Name"}, ["/existingConfigMap"]),
    ("daemonset", {"anomalyRules__rules": [{"kind": "range"}]}, ["/anomalyRules/rules/0", "name"]),
    ("daemonset", {"storage__accessKey": "AKIA"}, ["/storage", "accessKey"]),
    ("daemonset", {"storage__endpointUrl": "s3.example.com"}, ["/storage/endpointUrl"]),
    ("daemonset", {"storage__caBundle__existingSecret": "other"}, ["storage.caBundle"]),
    ("daemonset", {"dump__hostPath": ""}, ["dump", "hostPath"]),
    ("daemonset", {"dump__hostPath": "data/dump"}, ["/dump/hostPath"]),
    ("daemonset", {"dump__existingClaim": "too"}, ["dump", "not several"]),
    ("daemonset", {"dump__directory": "/elsewhere"}, ["dump.directory", "dump.mountPath"]),
    ("daemonset", {"dump__runAsUser": "training"}, ["/dump/runAsUser"]),
    ("daemonset", {"dump__runAsUser": -5}, ["/dump/runAsUser"]),
    ("daemonset", {"watcher__mode": "DaemonSet"}, ["/watcher/mode", "daemonset"]),
    ("daemonset", {"watcher__nodeLocal": False}, ["watcher.nodeLocal", "deployment"]),
    ("daemonset", {"watcher__worker__count": 0}, ["watcher.worker.count"]),
    ("daemonset", {"watcher__worker__firstPort": 65535}, ["watcher.worker.firstPort"]),
    ("daemonset", {"watcher__worker__firstPort": 9106}, ["watcher.metrics.port"]),
    ("daemonset", {"watcher__metrics__port": 99999}, ["/watcher/metrics/port"]),
    ("daemonset", {"watcher__terminationGracePeriodSeconds": 20}, ["terminationGrace", "drain_s"]),
    ("daemonset", {"watcher__resources": {"memory": "2Gi"}}, ["/watcher/resources", "memory"]),
    ("daemonset", {"watcher__replicas": 3}, ["/watcher", "replicas"]),
    ("daemonset", {"watcher__extraEnv": {"A": "b"}}, ["/watcher/extraEnv", "array"]),
    ("daemonset", {"watcher__nodeSelector": {"npu": True}}, ["/watcher/nodeSelector/npu", "string"]),
    ("daemonset", {"scheduler__address": "tls://a:1"}, ["scheduler.address", "scheduler.enabled"]),
    ("daemonset", {"scheduler__httpPort": 8786}, ["scheduler.httpPort"]),
    ("tls-off", {"scheduler__service": {"type": "LoadBalancer"}}, ["scheduler.service.type", "dask.tls"]),
    ("external-scheduler", {"scheduler__address": "scheduler:8786"}, ["/scheduler/address"]),
    ("external-scheduler", {"scheduler__address": "tcp://a:1"}, ["scheduler.address", "not encrypted"]),
    ("external-scheduler", {"dask__tls__enabled": False}, ["scheduler.address", "dask.tls.enabled"]),
    ("external-scheduler", {"dask__tls": {"source": "generate"}}, ["dask.tls.source"]),
    ("external-scheduler", {"dask__tls__existingSecret": ""}, ["dask.tls.existingSecret"]),
    ("daemonset", {"dask__tls__existingSecret": "mine"}, ["dask.tls.existingSecret", "dask.tls.source"]),
    ("daemonset", {"dask__tls__source": "self"}, ["/dask/tls/source", "certManager"]),
    ("daemonset", {"dask__config": {"distributed.comm": {}}}, ["/dask/config", "distributed.comm"]),
    ("deployment", {"worker__enabled": False}, ["worker.enabled", "no worker"]),
    ("deployment", {"worker__replicas": -1}, ["/worker/replicas"]),
    ("deployment", {"worker__ports__nanny": 8788}, ["worker.ports"]),
    ("deployment", {"worker__threads": 0}, ["/worker/threads"]),
    ("deployment", {"worker__lifetimeStagger": "a while"}, ["/worker/lifetimeStagger"]),
    ("deployment", {"worker__lifetime": "12 parsecs"}, ["/worker/lifetime"]),
    ("autoscaling", {"worker__autoscaling__minReplicas": 30}, ["worker.autoscaling.minReplicas"]),
    ("autoscaling", {"worker__autoscaling__kind": "keda"}, ["keda.serverAddress"]),
    ("daemonset", {"monitoring__podMonitor__interval": "often"}, ["/monitoring/podMonitor/interval"]),
    ("daemonset", {"monitorng": {}}, ["monitorng"]),
    ("daemonset", {"config": None}, ["config", "missing"]),
    ("daemonset", {"watcher": None}, ["watcher", "missing"]),
    ("daemonset", {"watcher__metrics__port": None}, ["/watcher/metrics", "port"]),
    ("daemonset", {"watcher": "on"}, ["/watcher", "object"]),
    ("daemonset", {"image__digest": "latest"}, ["/image/digest"]),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "values", "said"), WRONG, ids=lambda value: "-".join(value) if type(value) is dict else None
)
def test_a_wrong_value_is_refused_by_name(name: str, values: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(helm_python.HelmError) as refused:
        render(changed(quick(name), **values))
    for words in said:
        assert words in refused.value.detail


def test_the_dump_is_read_as_its_user_and_the_store_written_as_the_same() -> None:
    for _, pod in pods(objects(quick("deployment"))):
        identity = pod["spec"]["securityContext"]
        expected = 10001 if containers(pod)[0]["name"] == "scheduler" else 1000
        assert (identity["runAsUser"], identity["runAsGroup"]) == (expected, expected)


def test_values_are_only_values() -> None:
    """What looks like YAML or like a template stays what it is."""
    strange = 'a: b # "c" {{ .Values }}\n- d'
    store = 's3://bucket/a#"c"{{.Values}}'
    values = changed(
        quick("daemonset"),
        config__store=store,
        dump__hostPath=f"/{strange}",
        dump__mountPath=f"/{strange}",
        storage__region=strange,
        storage__accessKeyIdKey=strange,
        storage__caBundle={"existingSecret": "ca", "key": strange},
        extraEnv=[{"name": "A", "value": strange}],
        watcher__extraArgs=[f"--rank-map={strange}"],
        watcher__metrics__host=strange,
        watcher__podAnnotations={"a": strange},
    )
    found = objects(values)
    watcher = find(found, "DaemonSet", "-watcher")["spec"]["template"]["spec"]
    container = watcher["containers"][0]
    assert yaml.safe_load(data(found, "-config")["config.yaml"])["store"] == store
    assert container["args"] == [
        "watch",
        f"/{strange}",
        "--config=/etc/dump-ingest/config.yaml",
        f"--rank-map={strange}",
    ]
    assert watcher["volumes"][-1]["hostPath"]["path"] == f"/{strange}"
    assert container["volumeMounts"][-1]["mountPath"] == f"/{strange}"
    environment = {variable["name"]: variable for variable in container["env"]}
    assert environment["A"]["value"] == environment["AWS_DEFAULT_REGION"]["value"] == strange
    assert environment["AWS_ACCESS_KEY_ID"]["valueFrom"]["secretKeyRef"]["key"] == strange
    assert environment["AWS_CA_BUNDLE"]["value"] == f"/etc/store-ca/{strange}"
    assert environment["DUMP_INGEST_METRICS"]["value"] == f"{strange}:9108"


@pytest.mark.parametrize("probe", ["livenessProbe", "readinessProbe", "resources"])
def test_null_takes_a_default_away(probe: str) -> None:
    found = objects(changed(quick("deployment"), **{f"worker__{probe}": None}))
    worker = find(found, "Deployment", "-worker")["spec"]["template"]["spec"]["containers"][0]
    assert probe not in worker


def test_root_reads_dumps_of_root_without_any_capability() -> None:
    daemon_set = find(objects(changed(quick("daemonset"), dump__runAsUser=0)), "DaemonSet", "-watcher")
    spec = daemon_set["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsUser"] == 0
    assert spec["securityContext"]["runAsNonRoot"] is False
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_changed_settings_restart_what_reads_them_and_nothing_else() -> None:
    before, after = (
        {
            manifest["metadata"]["name"]: manifest["spec"]["template"]["metadata"]
            .get("annotations", {})
            .get("checksum/config")
            for manifest in objects(changed(quick("tls-cert-manager"), config__quiet_s=quiet_s))
            if "template" in manifest.get("spec", {})
        }
        for quiet_s in (10, 20)
    )
    assert {name for name in before if before[name] != after[name]} == {
        "run1-dump-ingest-consolidator",
        "run1-dump-ingest-watcher",
    }


@pytest.mark.parametrize(
    ("enabled", "said", "not_said"),
    [
        (
            [],
            ["see monitoring.podMonitor and monitoring.serviceMonitor", "see monitoring.prometheusRule"],
            ["never fire", "ask Prometheus"],
        ),
        (
            ["podMonitor", "prometheusRule"],
            ["see monitoring.serviceMonitor", "never fire", 'up{namespace="train",run="run1"}'],
            ["see monitoring.podMonitor", "Nobody is told"],
        ),
        (
            ["podMonitor", "serviceMonitor", "prometheusRule"],
            ['dump_ingest:targets:count{namespace="train",run="run1"}'],
            ["see monitoring", "never fire"],
        ),
    ],
    ids=["nothing", "no monitor of the scheduler", "everything"],
)
def test_notes_say_what_nobody_watches(enabled: list[str], said: list[str], not_said: list[str]) -> None:
    switches = {f"monitoring__{name}__enabled": True for name in enabled}
    notes = render(changed(quick("daemonset"), **switches))["NOTES.txt"]
    assert [words for words in said if words not in notes] == []
    assert [words for words in not_said if words in notes] == []
