"""What the chart sends to Kubernetes, for each example: valid, secure, consistent."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from tests.charts import (
    CHART,
    PROFILES,
    RELEASE,
    Object,
    changed,
    containers,
    objects,
    of_profile,
    pods,
    profile,
    quick,
)
from tests.custom_kinds import KINDS, problems

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
