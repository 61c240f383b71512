"""The Helm chart, rendered by Helm itself, and what is in it."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import helm_python
import yaml

CHART = Path(__file__).parent.parent / "helm" / "dump-ingest"
PROFILES = tuple(sorted(path.name.removesuffix("-values.yaml") for path in CHART.glob("ci/*-values.yaml")))
RELEASE, NAMESPACE = "run1", "train"
Object: TypeAlias = dict[str, Any]


def profile(name: str) -> dict[str, Any]:
    """Return the values of an example."""
    values: dict[str, Any] = yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text())
    return values


def quick(name: str) -> dict[str, Any]:
    """Return the values of an example, for tests that are not about TLS: making keys takes the most time."""
    values = profile(name)
    return values if "dask" in values else changed(values, dask__tls__source="certManager")


def changed(values: Mapping[str, Any], **paths: Any) -> dict[str, Any]:
    """Return values with some of them replaced, as `helm --set` does it; `__` stands for a dot."""
    made: dict[str, Any] = json.loads(json.dumps(values))
    for path, value in paths.items():
        *above, name = path.split("__")
        place = made
        for part in above:
            place = place.setdefault(part, {})
        place[name] = value
    return made


def render(values: Mapping[str, Any], *, release: str = RELEASE) -> dict[str, str]:
    """Return the rendered text of each template, by the path below `templates/`.

    Raises:
        helm_python.HelmError: Helm refuses the values.
    """
    with helm_python.Chart.load(CHART) as chart:
        rendered = chart.render(dict(values), name=release, namespace=NAMESPACE)
    return {path.partition("/templates/")[2]: text for path, text in rendered.items()}


def objects(values: Mapping[str, Any], *, release: str = RELEASE) -> list[Object]:
    """Return what would be sent to Kubernetes."""
    texts = render(values, release=release)
    manifests = (text for path, text in texts.items() if path.endswith(".yaml"))
    # Written in C where there is one: there are hundreds of pages to read.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [one for text in manifests for one in yaml.load_all(text, loader) if one]


@functools.cache
def of_profile(name: str) -> tuple[Object, ...]:
    """Return the objects of an example. Not to be changed."""
    return tuple(objects(profile(name)))


def find(found: list[Object] | tuple[Object, ...], kind: str, suffix: str) -> Object:
    """Return the one object of a kind whose name ends like this."""
    (one,) = (o for o in found if o["kind"] == kind and o["metadata"]["name"].endswith(suffix))
    return one


def pods(found: list[Object] | tuple[Object, ...]) -> Iterator[tuple[str, Object]]:
    """Return the pods that would run: a name, metadata and spec. Those of a sidecar's host are made up."""
    for one in found:
        name = f"{one['kind']}/{one['metadata']['name']}"
        if one["kind"] == "Pod":
            yield name, {"metadata": one["metadata"], "spec": one["spec"]}
        elif one["kind"] == "CronJob":
            yield name, one["spec"]["jobTemplate"]["spec"]["template"]
        elif "template" in one.get("spec", {}):
            yield name, one["spec"]["template"]
        elif one["kind"] == "ConfigMap" and "pod.yaml" in one["data"]:
            yield name, sidecar_pod(one)


def sidecar_pod(config_map: Object) -> Object:
    """Return a training pod with the sidecar added, as the ConfigMap says."""
    fragment: Object = yaml.safe_load(config_map["data"]["pod.yaml"])
    job = {"name": "train", "image": "train", "volumeMounts": [{"name": "dump", "mountPath": "/d"}]}
    fragment["spec"].setdefault("containers", []).append(job)
    return {"metadata": {"name": "train", **fragment.get("metadata", {})}, "spec": fragment["spec"]}


def containers(pod: Object) -> list[Object]:
    """Return our containers of a pod, first those that start first."""
    spec = pod["spec"]
    ours = [*spec.get("initContainers", []), *spec["containers"]]
    return [one for one in ours if one["name"] != "train"]


def environment(container: Object) -> dict[str, str]:
    """Return the variables of a container as Kubernetes would set them, `$(NAME)` expanded."""
    made: dict[str, str] = {}
    for one in container.get("env", []):
        if "value" in one:
            made[one["name"]] = expanded(one["value"], made)
        elif "resourceFieldRef" in one["valueFrom"]:
            made[one["name"]] = str(2**31)
        else:
            made[one["name"]] = "from-elsewhere.example"
    return made


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Return a value or an argument as Kubernetes passes it on: unknown names stay as they are."""
    return re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], found[0]), text)


def words(container: Object) -> list[str]:
    """Return what a container runs."""
    variables = environment(container)
    return [expanded(word, variables) for word in (*container["command"], *container.get("args", ()))]


def data(found: list[Object] | tuple[Object, ...], suffix: str) -> dict[str, str]:
    """Return the files of a ConfigMap."""
    files: dict[str, str] = find(found, "ConfigMap", suffix)["data"]
    return files
