"""The Helm chart: its values, what it renders, and what it refuses."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml
from distributed import system
from distributed.worker_memory import parse_memory_limit

from helm import generate
from helm.generate import of_one_release, with_matchers
from tests.charts import (
    CHART,
    PROFILES,
    RELEASE,
    Object,
    changed,
    containers,
    data,
    find,
    objects,
    of_profile,
    pods,
    profile,
    quick,
    render,
    words,
)
from tests.custom_kinds import KINDS, problems
from tests.servers.process import run_tool

# Wrong values are refused before anything is installed, by a message that names them.


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
    for sentence in said:
        assert sentence in refused.value.detail


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
    assert [sentence for sentence in said if sentence not in notes] == []
    assert [sentence for sentence in not_said if sentence in notes] == []


# What users of other charts expect, as it reaches Kubernetes; and what keeps roles apart.


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


# What the chart sends to Kubernetes, for each example: valid, secure, consistent.


VERSIONS = ("1.29", "1.35")
PER_PROFILE = pytest.mark.parametrize("name", PROFILES)
#: The longest that Helm takes.
LONG_RELEASE = "a-release-whose-name-is-as-long-as-helm-permits-it-53"


@pytest.mark.one_in(3)
@PER_PROFILE
def test_helm_finds_nothing_to_complain_of(name: str) -> None:
    report = helm_python.lint(CHART, profile(name), strict=True)
    # 1 is information: an icon is recommended.
    assert [found for found in report["messages"] if found["severity"] > 1] == []
    assert report["errors"] == []


@pytest.mark.one_in(3)
@PER_PROFILE
@pytest.mark.parametrize("version", VERSIONS)
def test_everything_is_right_by_the_schemas_of_kubernetes(name: str, version: str) -> None:
    for manifest in with_sidecar_pods(of_profile(name)):
        check_schema(manifest, version)


def check_schema(manifest: Object, version: str) -> None:
    kind = f"{manifest['apiVersion']}/{manifest['kind']}"
    if kind in KINDS:
        assert problems(manifest) == []
    else:
        # A kind that it does not know is an error, too.
        kubernetes_validate.validate(manifest, version, strict=True)


def with_sidecar_pods(found: tuple[Object, ...]) -> Iterator[Object]:
    yield from found
    for name, pod in pods(found):
        if name.startswith("ConfigMap/"):
            yield {"apiVersion": "v1", "kind": "Pod", **pod}


def own(pod: Object) -> list[Object]:
    """Return the containers that run the image of this project, without those that an example adds."""
    return [container for container in containers(pod) if "/dump-ingest" in container["image"]]


@PER_PROFILE
def test_every_container_runs_without_privileges(name: str) -> None:
    for where, pod in pods(of_profile(name)):
        for container in own(pod):
            # As Kubernetes does it: what the container says wins.
            security = pod["spec"].get("securityContext", {}) | container["securityContext"]
            # On OpenShift, users are chosen later.
            assert security["runAsNonRoot"] is (security.get("runAsUser") != 0), where
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}, where
            assert security["readOnlyRootFilesystem"] is True, where
            assert security["allowPrivilegeEscalation"] is False, where
            assert security["capabilities"] == {"drop": ["ALL"]}, where
            assert not security.get("privileged"), where
            assert container["resources"]["limits"]["memory"], where
            assert container["resources"]["requests"]["cpu"], where


def test_containers_run_as_the_user_of_the_image() -> None:
    """So that what the image has prepared for its user is right here, too."""
    image = (CHART.parent.parent / "deploy" / "Dockerfile").read_text()
    (uid,) = re.findall(r"^ARG UID=(\d+)$", image, re.MULTILINE)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["podSecurityContext"]["runAsUser"] == int(uid)
    (version,) = re.findall(
        r'^version = "(.+)"$', (CHART.parent.parent / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == version


@PER_PROFILE
def test_no_pod_has_a_token_or_variables_of_services(name: str) -> None:
    """Kubernetes would set DUMP_INGEST_SCHEDULER_PORT for the service of a release called dump-ingest."""
    for where, pod in pods(of_profile(name)):
        assert pod["spec"]["enableServiceLinks"] is False, where
        if where.startswith("ConfigMap/"):
            continue  # the account of somebody else's pod is theirs
        assert pod["spec"]["automountServiceAccountToken"] is False, where
        assert not any(pod["spec"].get(key) for key in ("hostPID", "hostIPC")), where
        wanted = where.endswith(("watcher", "doctor")) and name == "company"
        assert bool(pod["spec"].get("hostNetwork")) is wanted, where


@PER_PROFILE
def test_dumps_are_mounted_read_only_and_credentials_come_from_secrets(name: str) -> None:
    for where, pod in pods(of_profile(name)):
        for container in own(pod):
            for mount in container["volumeMounts"]:
                writable = {"dump-ingest-tmp", "dump-ingest-store"}
                assert mount["name"] in writable or mount["readOnly"] is True, where
            for variable in container["env"]:
                if any(word in variable["name"] for word in ("KEY", "SECRET", "TOKEN")):
                    assert "secretKeyRef" in variable["valueFrom"], where


@pytest.mark.parametrize("value", [{"config__after_commit": "delete"}, {"dump__writable": True}])
def test_only_a_watcher_that_deletes_may_write_the_dump(value: dict[str, Any]) -> None:
    values = changed(quick("daemonset"), dump__hostPath="", dump__existingClaim="dumps", **value)
    writable = {
        container["name"]
        for _, pod in pods(objects(values))
        for container in containers(pod)
        for mount in container["volumeMounts"]
        if mount["name"] == "dump-ingest-dump" and not mount["readOnly"]
    }
    assert writable == {"watcher"}
    claims = [
        volume["persistentVolumeClaim"]["readOnly"]
        for where, pod in pods(objects(values))
        if where.startswith("DaemonSet/")
        for volume in pod["spec"]["volumes"]
        if volume["name"] == "dump-ingest-dump"
    ]
    assert claims == [False]


@PER_PROFILE
def test_names_within_a_pod_fit_together(name: str) -> None:
    for where, pod in pods(of_profile(name)):
        volumes = Counter(volume["name"] for volume in pod["spec"]["volumes"])
        assert max(volumes.values()) == 1, where
        mounted = {
            mount["name"] for container in containers(pod) for mount in container.get("volumeMounts", ())
        }
        assert mounted == set(volumes), where
        ports = [port for container in containers(pod) for port in container.get("ports", ())]
        assert max(Counter(port["name"] for port in ports).values(), default=0) <= 1, where
        assert max(Counter(port["containerPort"] for port in ports).values(), default=0) <= 1, where
        for container in containers(pod):
            assert (
                max(Counter(variable["name"] for variable in container.get("env", ())).values(), default=1)
                == 1
            ), where
            declared = {p["name"] for p in container.get("ports", ())} | {
                p["containerPort"] for p in container.get("ports", ())
            }
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if probe in container:
                    assert container[probe]["httpGet"]["port"] in declared, where


@PER_PROFILE
def test_what_names_ports_and_pods_finds_them(name: str) -> None:
    """Services, network policies and monitors select pods of this chart, by ports that they have."""
    found = of_profile(name)
    templates = [(pod["metadata"]["labels"], port_names(pod)) for _, pod in pods(found)]
    for manifest in found:
        for selector, ports in selected(manifest):
            matching = [names for labels, names in templates if selector.items() <= labels.items()]
            assert matching, manifest["metadata"]["name"]
            assert ports <= set.union(*matching), manifest["metadata"]["name"]


def port_names(pod: Object) -> set[str]:
    return {port["name"] for container in containers(pod) for port in container.get("ports", ())}


def selected(manifest: Object) -> Iterator[tuple[dict[str, str], set[str]]]:
    spec: Any = manifest.get("spec", {})
    match manifest["kind"]:
        case "Service":
            yield spec["selector"], {port["targetPort"] for port in spec["ports"]}
        case "PodMonitor":
            yield (
                spec["selector"]["matchLabels"],
                {endpoint["port"] for endpoint in spec["podMetricsEndpoints"]},
            )
        case "ServiceMonitor":
            yield spec["selector"]["matchLabels"], {endpoint["port"] for endpoint in spec["endpoints"]}
        case "PodDisruptionBudget" | "Deployment" | "DaemonSet":
            yield spec["selector"]["matchLabels"], set()
        case "NetworkPolicy":
            rules = spec.get("ingress", [])
            named = {port["port"] for rule in rules for port in rule["ports"] if "endPort" not in port}
            yield spec["podSelector"]["matchLabels"], named
            for rule in [*rules, *spec.get("egress", [])]:
                for peer in [*rule.get("from", []), *rule.get("to", [])]:
                    if "podSelector" in peer:
                        yield peer["podSelector"]["matchLabels"], set()


@PER_PROFILE
def test_selectors_hold_only_what_never_changes(name: str) -> None:
    """Selectors of workloads cannot be changed: with a version in them, an upgrade would fail."""
    for manifest in of_profile(name):
        if manifest["kind"] in {"Deployment", "DaemonSet"}:
            labels = manifest["spec"]["selector"]["matchLabels"]
            parts = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}
            assert set(labels) == parts
            assert labels["app.kubernetes.io/instance"] == RELEASE
            assert "helm.sh/chart" not in manifest["spec"]["template"]["metadata"]["labels"]


@PER_PROFILE
def test_all_objects_carry_the_common_labels_and_a_namespace(name: str) -> None:
    expected = {
        "app.kubernetes.io/name": "dump-ingest",
        "app.kubernetes.io/instance": RELEASE,
        "app.kubernetes.io/managed-by": "Helm",
        "helm.sh/chart": "dump-ingest-0.1.0",
        **profile(name).get("commonLabels", {}),
    }
    found = of_profile(name)
    for manifest in found:
        if manifest["kind"] == "ClusterRoleBinding":
            continue  # an example of `extraManifests`
        assert expected.items() <= manifest["metadata"]["labels"].items()
        assert manifest["metadata"].get("namespace") or manifest["kind"] == "SecurityContextConstraints"
    assert max(Counter((manifest["kind"], manifest["metadata"]["name"]) for manifest in found).values()) == 1


@pytest.mark.parametrize("name", ["daemonset", "deployment", "monitoring", "tls-cert-manager"])
def test_names_stay_short_and_apart_with_the_longest_release(name: str) -> None:
    releases = (LONG_RELEASE, LONG_RELEASE[:-2] + "54")
    made = [objects(quick(name), release=release) for release in releases]
    names = [{manifest["metadata"]["name"] for manifest in found} for found in made]
    assert all(len(name) <= 63 for name in names[0])
    assert not names[0] & names[1]
    for manifest in made[0]:
        for key, value in manifest["metadata"]["labels"].items():
            assert len(value) <= 63
            assert len(key.rpartition("/")[2]) <= 63
        if manifest["kind"] != "PrometheusRule":
            check_schema(manifest, VERSIONS[1])


# The generated parts of the chart.


def test_what_is_generated_is_current() -> None:
    """Schema and README follow values.yaml and the settings; alerts and dashboards are those of deploy/."""
    done = subprocess.run(
        [sys.executable, CHART.parent / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_value_is_described_and_has_a_type() -> None:
    def check(schema: dict[str, object], path: str) -> None:
        properties = schema.get("properties", {})
        assert isinstance(properties, dict)
        for name, value in properties.items():
            if not isinstance(value, dict) or path.startswith(".config"):
                continue
            assert "type" in value, f"{path}.{name}"
            if value.get("additionalProperties") is False and "required" in value:
                check(value, f"{path}.{name}")

    check(json.loads(generate.schema()), "")


# The page in Kubernetes: who reaches it, what it may do, and what leads to it.


def page_pod(rendered: Any) -> Any:
    return find(rendered, "Deployment", "-page")["spec"]["template"]


def test_the_page_asks_for_the_token_of_the_secret_and_only_reads() -> None:
    pod = page_pod(of_profile("page"))
    (container,) = containers(pod)
    assert "--token-file=/etc/dump-ingest-page/token" in words(container)
    assert "--allow-anyone" not in words(container)
    (secret,) = (volume["secret"] for volume in pod["spec"]["volumes"] if "secret" in volume)
    assert secret == {"secretName": "page-token", "items": [{"key": "token", "path": "token"}]}
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/tmp"}  # noqa: S108  in a container
    assert not [mount for mount in container["volumeMounts"] if mount["name"] == "dump-ingest-dump"]


def test_ingress_and_route_lead_to_the_port_of_the_service() -> None:
    rendered = of_profile("page")
    service = find(rendered, "Service", "-page")
    name, port = service["metadata"]["name"], service["spec"]["ports"][0]
    ingress = find(rendered, "Ingress", "-page")["spec"]
    (path,) = ingress["rules"][0]["http"]["paths"]
    assert (path["path"], path["pathType"]) == ("/llama-7b", "Prefix")
    assert path["backend"]["service"] == {"name": name, "port": {"name": port["name"]}}
    assert ingress["tls"] == [{"secretName": "dumps-example-com", "hosts": ["dumps.example.com"]}]
    (rule,) = find(rendered, "HTTPRoute", "-page")["spec"]["rules"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/llama-7b"}}]
    assert rule["backendRefs"] == [{"name": name, "port": port["port"]}]


def test_only_the_named_peers_reach_a_page_that_trusts_a_header() -> None:
    """Anyone else could write the header; who scrapes may not be anybody either."""
    proxy = [{"podSelector": {"matchLabels": {"app": "oauth2-proxy"}}}]
    values = changed(profile("page"), page__existingSecret="", page__trustHeader="X-User", page__from=proxy)
    monitoring = values["networkPolicy"]["monitoringFrom"]
    choices: list[list[Any]] = [monitoring, []]
    for scrapers in choices:
        rendered = objects(changed(values, networkPolicy__monitoringFrom=scrapers))
        (rule,) = find(rendered, "NetworkPolicy", "-page")["spec"]["ingress"]
        assert rule == {"ports": [{"protocol": "TCP", "port": "page"}], "from": proxy + scrapers}


@pytest.mark.parametrize(("name", "port"), [("page", "metrics"), ("sidecar", "di-metrics")])
def test_the_page_may_ask_every_watcher_of_the_release(name: str, port: str) -> None:
    """Also where only the monitoring may reach metrics, and where what leaves pods is restricted."""
    values = changed(
        quick(name),
        page__enabled=True,
        page__existingSecret="page-token",
        networkPolicy__egress__enabled=True,
        networkPolicy__monitoringFrom=[{"podSelector": {}}],
    )
    rendered = objects(values)
    (container,) = containers(page_pod(rendered))
    assert "--watchers=run1-dump-ingest-watchers.train.svc:9108" in words(container)
    service = find(rendered, "Service", "-watchers")["spec"]
    assert service["clusterIP"] == "None"
    assert service["ports"][0]["targetPort"] == port
    labels = page_pod(rendered)["metadata"]["labels"]
    rules = find(rendered, "NetworkPolicy", "-watcher")["spec"]["ingress"]
    admitted = [
        rule
        for rule in rules
        for peer in rule.get("from", ())
        if peer["podSelector"].get("matchLabels", {"": ""}).items() <= labels.items()
    ]
    assert [rule["ports"] for rule in admitted] == [[{"protocol": "TCP", "port": port}]]
    egress = find(rendered, "NetworkPolicy", "-egress")["spec"]["egress"]
    to_watchers = {"podSelector": {"matchLabels": service["selector"]}}
    assert {"to": [to_watchers], "ports": [{"protocol": "TCP", "port": 9108}]} in egress


# Alerts and dashboards of the chart: those of `deploy/`, and right for Prometheus and Grafana.


DEPLOY = CHART.parent.parent / "deploy"


def rule_of(**values: Any) -> dict[str, Any]:
    """Return the groups of the rendered PrometheusRule, in which nothing is changed but by these values."""
    chosen = changed(quick("daemonset"), monitoring__prometheusRule={"enabled": True, **values})
    spec: dict[str, Any] = find(objects(chosen), "PrometheusRule", "dump-ingest")["spec"]
    return spec


def alerts_of(**values: Any) -> dict[str, Any]:
    return {
        rule["alert"]: rule
        for group in rule_of(**values)["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }


def test_alerts_are_the_same_as_beside_a_plain_prometheus() -> None:
    plain = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    assert rule_of(matchRelease=False) == plain


def test_alerts_of_a_release_select_its_series_and_carry_its_labels() -> None:
    """Receivers and inhibitions need the labels, also where an expression aggregates them away."""
    plain, own = alerts_of(matchRelease=False), alerts_of()
    assert plain.keys() == own.keys()
    for name, alert in own.items():
        assert alert["labels"] == plain[name]["labels"] | {"run": "run1", "namespace": "train"}
        matchers = 'namespace="train",run="run1"'
        assert matchers in alert["expr"], name
        without = alert["expr"].replace(f"{{{matchers}}}", "").replace(f"{matchers},", "")
        assert without == plain[name]["expr"]


def test_alerts_of_findings_lead_to_the_page_of_the_release() -> None:
    url = "https://dumps.example.com/run1"
    chosen = changed(
        quick("daemonset"), monitoring__prometheusRule={"enabled": True}, config__page_url=f"{url}/"
    )
    groups = find(objects(chosen), "PrometheusRule", "dump-ingest")["spec"]["groups"]
    annotations = [rule.get("annotations", {}) for group in groups for rule in group["rules"]]
    links = [annotation["page_url"] for annotation in annotations if "page_url" in annotation]
    assert len(links) == 4
    for link in links:
        assert f'{{{{ if "{url}" }}}}{{{{ "{url}" }}}}/' in link
        assert "$externalLabels" not in link
    leading = [alert for alert in alerts_of().values() if "page_url" in alert["annotations"]]
    assert len(leading) == 4
    for alert in leading:
        assert "$externalLabels.page" in alert["annotations"]["page_url"]


@pytest.mark.parametrize("prefix", ["https://git.example.com/", "https://git.example.com"])
def test_values_change_alerts_by_name(prefix: str) -> None:
    before = alerts_of(matchRelease=False)
    after = alerts_of(
        matchRelease=False,
        ruleLabels={"team": "training"},
        runbookUrlPrefix=prefix,
        disabled=["DumpIngestNoWatchers"],
        overrides={"DumpIngestWatcherDown": {"for": "15m", "labels": {"severity": "warning"}}},
    )
    assert before.keys() - after.keys() == {"DumpIngestNoWatchers"}
    down = after["DumpIngestWatcherDown"]
    assert down["for"] == "15m"
    assert down["labels"] == {"severity": "warning", "audience": "platform", "team": "training"}
    assert down["expr"] == before["DumpIngestWatcherDown"]["expr"]
    for name, alert in after.items():
        runbook = before[name]["annotations"]["runbook_url"]
        assert alert["annotations"]["runbook_url"] == f"https://git.example.com/{runbook}"
        assert alert["labels"]["team"] == "training"


@pytest.mark.parametrize("values", [{"disabled": ["LagHihg"]}, {"overrides": {"LagHihg": {"for": "1m"}}}])
def test_an_alert_that_does_not_exist_is_refused_by_name(values: dict[str, Any]) -> None:
    with pytest.raises(helm_python.HelmError, match="no alert LagHihg; there are DumpIngest"):
        rule_of(**values)


# Matchers in PromQL: on each selector, and on nothing else.


RULES = CHART.parent.parent / "deploy" / "prometheus" / "rules.yml"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("up", "up{M}"),
        ('up{job="a"} == 0', 'up{M,job="a"} == 0'),
        (
            "sum by (job, run) (rate(dask_a_total[5m])) > 0",
            "sum by (job, run) (rate(dask_a_total{M}[5m])) > 0",
        ),
        (
            "kube_a and on (x) group_left (y) max without (z) (dump_ingest:process_age:seconds)",
            "kube_a{M} and on (x) group_left (y) max without (z) (dump_ingest:process_age:seconds{M})",
        ),
        ("count(up offset 30m) > bool 1", "count(up{M} offset 30m) > bool 1"),
        ('up{job=~".*dump-ingest.*"}', 'up{M,job=~".*dump-ingest.*"}'),
    ],
)
def test_each_selector_gets_the_matchers(before: str, after: str) -> None:
    assert with_matchers(before, "M") == after


def test_no_selector_of_the_rules_is_without_the_matchers() -> None:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            scoped = with_matchers(rule["expr"], "M")
            assert re.findall(r"\{(?!M[,}])|[\w:]+(?=\[)", scoped) == [], scoped


@pytest.mark.skipif(
    shutil.which("promtool") is None and not os.environ.get("CI"),
    reason="not installed: promtool (make servers)",
)
def test_rules_of_one_release_pass_promtool(tmp_path: Path) -> None:
    text = of_one_release(RULES.read_text())
    assert len(yaml.safe_load(text)["groups"]) == len(yaml.safe_load(RULES.read_text())["groups"])
    (tmp_path / "rules.yml").write_text(text)
    assert "SUCCESS" in run_tool(["promtool", "check", "rules", str(tmp_path / "rules.yml")])
