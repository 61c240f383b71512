"""Render the Helm chart with Helm itself, and find the objects in the result."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import helm_python
import yaml

CHART = Path(__file__).parent.parent / "helm" / "dump-ingest"
PROFILES = tuple(sorted(path.name.removesuffix("-values.yaml") for path in CHART.glob("ci/*-values.yaml")))
RELEASE, NAMESPACE = "run1", "train"
Object: TypeAlias = dict[str, Any]


def profile(name: str) -> dict[str, Any]:
    """Return the values of one of the chart's example files."""
    values: dict[str, Any] = yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text())
    return values


def quick(name: str) -> dict[str, Any]:
    """Return the values of an example without generated TLS keys, which take most of the time to render."""
    values = profile(name)
    return values if "dask" in values else changed(values, dask__tls__source="certManager")


def changed(values: Mapping[str, Any], **paths: Any) -> dict[str, Any]:
    """Return a copy of the values with some replaced, as `helm --set` does; `__` stands for a dot."""
    copy: dict[str, Any] = json.loads(json.dumps(values))
    for path, value in paths.items():
        *parents, name = path.split("__")
        mapping = copy
        for parent in parents:
            mapping = mapping.setdefault(parent, {})
        mapping[name] = value
    return copy


def render(
    values: Mapping[str, Any], *, release: str = RELEASE, namespace: str = NAMESPACE
) -> dict[str, str]:
    """Return the rendered text of each template by its path below `templates/`.

    Raises:
        helm_python.HelmError: Helm rejects the values.
    """
    with helm_python.Chart.load(CHART) as chart:
        rendered = chart.render(dict(values), name=release, namespace=namespace)
    return {path.partition("/templates/")[2]: text for path, text in rendered.items()}


def objects(values: Mapping[str, Any], *, release: str = RELEASE, namespace: str = NAMESPACE) -> list[Object]:
    """Return the objects that Helm would send to Kubernetes."""
    texts = render(values, release=release, namespace=namespace)
    manifests = (text for path, text in texts.items() if path.endswith(".yaml"))
    # The C parser if PyYAML has it: there are hundreds of documents to parse.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for text in manifests for document in yaml.load_all(text, loader) if document]


@functools.cache
def of_profile(name: str) -> tuple[Object, ...]:
    """Return the rendered objects of an example. They are cached: do not modify them."""
    return tuple(objects(profile(name)))


def find(rendered: Sequence[Object], kind: str, suffix: str) -> Object:
    """Return the only object of a kind whose name ends with `suffix`. Raise ValueError if not exactly one."""
    (match,) = (o for o in rendered if o["kind"] == kind and o["metadata"]["name"].endswith(suffix))
    return match


def pods(rendered: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    """Yield the pods that would run: a name, and a mapping with metadata and spec.

    The chart only describes the sidecar; the training pod around it is invented here.
    """
    for manifest in rendered:
        name = f"{manifest['kind']}/{manifest['metadata']['name']}"
        if manifest["kind"] == "Pod":
            yield name, {"metadata": manifest["metadata"], "spec": manifest["spec"]}
        elif manifest["kind"] == "CronJob":
            yield name, manifest["spec"]["jobTemplate"]["spec"]["template"]
        elif "template" in manifest.get("spec", {}):
            yield name, manifest["spec"]["template"]
        elif manifest["kind"] == "ConfigMap" and "pod.yaml" in manifest["data"]:
            yield name, sidecar_pod(manifest)


def sidecar_pod(config_map: Object) -> Object:
    """Return a training pod with the sidecar added in the way that the ConfigMap describes."""
    fragment: Object = yaml.safe_load(config_map["data"]["pod.yaml"])
    job = {"name": "train", "image": "train", "volumeMounts": [{"name": "dump", "mountPath": "/d"}]}
    fragment["spec"].setdefault("containers", []).append(job)
    return {"metadata": {"name": "train", **fragment.get("metadata", {})}, "spec": fragment["spec"]}


def containers(pod: Object) -> list[Object]:
    """Return the project's own containers of a pod, in the order in which they start."""
    spec = pod["spec"]
    all_of_pod = [*spec.get("initContainers", []), *spec["containers"]]
    return [container for container in all_of_pod if container["name"] != "train"]


def environment(container: Object) -> dict[str, str]:
    """Return the variables of a container as Kubernetes would set them, with `$(NAME)` expanded."""
    variables: dict[str, str] = {}
    for variable in container.get("env", []):
        name = variable["name"]
        if "value" in variable:
            variables[name] = expanded(variable["value"], variables)
        elif "resourceFieldRef" in variable["valueFrom"]:
            variables[name] = str(2**31)
        else:
            variables[name] = "from-elsewhere.example"
    return variables


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Expand `$(NAME)` in a value or an argument as Kubernetes does: unknown names stay as they are."""
    return re.sub(r"\$\((\w+)\)", lambda match: variables.get(match[1], match[0]), text)


def words(container: Object) -> list[str]:
    """Return the command line that a container runs."""
    variables = environment(container)
    return [expanded(word, variables) for word in (*container["command"], *container.get("args", ()))]


def data(rendered: Sequence[Object], suffix: str) -> dict[str, str]:
    """Return the files of the ConfigMap whose name ends with `suffix`."""
    files: dict[str, str] = find(rendered, "ConfigMap", suffix)["data"]
    return files
