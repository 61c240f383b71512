"""Run what the Helm chart renders as pods of Podman: containers, probes, mounts, limits and grace periods."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from tests.servers.containers import Container, Podman

_WORKLOADS = {"Deployment", "DaemonSet"}
NODE = "node-1"


class Pods:
    """The workloads of one release, one pod each, in a network where Services are host names."""

    def __init__(self, engine: Podman, objects: Iterable[Mapping[str, Any]], *, image: str) -> None:
        self._engine = engine
        self._image = image
        self._objects = [json.loads(json.dumps(each)) for each in objects]
        self._network = f"pods-{engine.label[-12:]}"
        self._hosts: dict[str, str] = {}
        """By name of a Service: the address of its pod."""
        if engine.run("network", "exists", self._network).returncode:
            engine("network", "create", "--label", engine.label, self._network)

    def play(self, name: str, **volumes: Mapping[str, Any]) -> dict[str, Container]:
        """Start the pod of a workload; return its containers by name.

        Args:
            name: the workload.
            volumes: by name of a volume: what stands in for it.
        """
        [workload] = [
            each for each in self._objects if each["kind"] in _WORKLOADS and each["metadata"]["name"] == name
        ]
        template = workload["spec"]["template"]
        pod: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": template["metadata"]["labels"]},
            "spec": self._as_on_a_node(template["spec"], volumes),
        }
        settings = [each for each in self._objects if each["kind"] in {"ConfigMap", "Secret"}]
        file = self._engine.root / f"{name}.yaml"
        file.write_text(yaml.safe_dump_all([*settings, pod]))
        self._engine("kube", "play", "--network", self._network, file, timeout_s=120)
        [played] = json.loads(self._engine("pod", "inspect", name, "--format", "[{{json .}}]"))
        infra = json.loads(self._engine("inspect", played["InfraContainerID"]))[0]
        self._hosts[name] = infra["NetworkSettings"]["Networks"][self._network]["IPAddress"]
        return {
            each["name"]: Container(self._engine, f"{name}-{each['name']}")
            for each in pod["spec"]["containers"]
        }

    def end(self, name: str, *, grace_s: int) -> None:
        """End a pod as Kubernetes does: SIGTERM, and SIGKILL after the grace period."""
        self._engine("pod", "stop", "--time", grace_s, name, timeout_s=grace_s + 60)

    def close(self) -> None:
        """Remove every pod and what was made of ConfigMaps."""
        for name in self._hosts:
            self._engine("pod", "rm", "--force", "--time=0", name, code=None)
        self._engine("network", "rm", "--force", self._network, code=None)

    def grace_s(self, name: str) -> int:
        """Return the grace period of a workload."""
        [workload] = [
            each for each in self._objects if each["kind"] in _WORKLOADS and each["metadata"]["name"] == name
        ]
        return int(workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])

    def _as_on_a_node(self, spec: dict[str, Any], volumes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the specification of a pod as a kubelet carries it out, in words that Podman knows."""
        sidecars = [
            each for each in spec.pop("initContainers", ()) if each.pop("restartPolicy", "") == "Always"
        ]
        spec["containers"] += sidecars
        spec["hostAliases"] = [
            {"ip": address, "hostnames": [service, f"{service}.train.svc"]}
            for service, address in self._hosts.items()
        ]
        spec["restartPolicy"] = "Always"
        spec["volumes"] = [
            {"name": volume["name"], **volumes[volume["name"]]} if volume["name"] in volumes else volume
            for volume in spec.get("volumes", ())
        ]
        for container in spec["containers"]:
            container["image"] = self._image
            container["imagePullPolicy"] = "Never"
            container["env"] = _resolved(container)
            for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
                if probe := container.get(kind):
                    container[kind] = _as_command(probe, container["ports"])
            del container["ports"]  # Podman would give them to this machine
            # Podman knows no startup probes: the first liveness probe comes later instead.
            startup = container.pop("startupProbe", None)
            if startup and "livenessProbe" in container:
                container["livenessProbe"]["initialDelaySeconds"] = startup["periodSeconds"]
        return spec


def _resolved(container: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the environment with the values of the downward API, and of variables in variables."""
    values: dict[str, str] = {}
    for variable in container.get("env", ()):
        match variable.get("valueFrom"):
            case {"fieldRef": _}:
                value = NODE
            case {"resourceFieldRef": {"resource": "limits.memory"}}:
                value = container["resources"]["limits"]["memory"].replace("Gi", "GiB").replace("Mi", "MiB")
            case _:
                value = variable.get("value", "")
        values[variable["name"]] = _expanded(value, values)
    if "args" in container:
        container["args"][:] = [_expanded(word, values) for word in container["args"]]
    return [{"name": name, "value": value} for name, value in values.items()]


def _expanded(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the values of the variables that it names as `$(NAME)`."""
    for name, value in values.items():
        text = text.replace(f"$({name})", value)
    return text


def _as_command(probe: dict[str, Any], ports: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a probe that asks by a command, for a shell.

    Podman would ask with `curl`, which the image does not have.
    """
    if "httpGet" not in probe:
        return probe
    get = probe.pop("httpGet")
    by_name = {port.get("name"): port["containerPort"] for port in ports}
    url = f"http://127.0.0.1:{by_name.get(get['port'], get['port'])}{get['path']}"
    code = f"import urllib.request as u; u.urlopen({url!r}, timeout={probe.get('timeoutSeconds', 1)})"
    return {**probe, "exec": {"command": [shlex.join(["python", "-c", code])]}}
