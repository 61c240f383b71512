#!/usr/bin/env python3
"""Make the parts of the Helm chart that follow from something else. `--check` only says what is not current.

- `values.schema.json`: types and descriptions from `values.yaml`, limits from `RULES`, and below `config` the
  settings of `dump-ingest` themselves, so that a wrong setting fails before anything is installed.
- the table in `README.md`, from the `# -- ` comments of `values.yaml`.
- `files/`: alert rules and dashboards of `deploy/`; Helm reads nothing outside of a chart.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ingest.settings import Settings

HELM = Path(__file__).parent
CHART = HELM / "dump-ingest"
DEPLOY = HELM.parent / "deploy"
_TABLE = re.compile(r"(?<=<!-- values -->\n).*?(?=<!-- end of values -->)", re.DOTALL)

_NAME = {"pattern": r"^$|^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}
_PORT = {"minimum": 1, "maximum": 65535}
_ABSOLUTE = {"pattern": r"^/"}
_ABSOLUTE_OR_NONE = {"pattern": r"^$|^/"}
_DURATION = {"pattern": r"^([0-9]+(ms|s|m|h|d|w))+$"}
_STRINGS = {"additionalProperties": {"type": "string"}}
_OBJECTS = {"items": {"type": "object"}}
_NAMED = {"items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}}
_TEXTS = {"items": {"type": "string"}}
_BYTES = r"^\s*[0-9]*\.?[0-9]+\s*([kmgtpeKMGTPE]?[iI]?[bB])?\s*$"
_QUANTITIES = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}

#: What the defaults do not say, by the end of a value's path.
RULES: Mapping[str, Mapping[str, Any]] = {
    "affinity": {},
    "annotations": _STRINGS,
    "anomalyRules.rules": {
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "pattern": "^[a-z][a-z0-9_]{0,62}$"},
                "kind": {"type": "string"},
                "enabled": {"type": "boolean"},
                "severity": {"enum": ["info", "warning", "critical"]},
            },
        }
    },
    "autoscaling.kind": {"enum": ["hpa", "keda"]},
    "autoscaling.metrics": _OBJECTS,
    "certManager.duration": {"pattern": r"^([0-9]+(s|m|h))+$"},
    "certManager.issuerRef": {
        "additionalProperties": False,
        "properties": {name: {"type": "string"} for name in ("name", "kind", "group")},
    },
    "certManager.renewBefore": {"pattern": r"^([0-9]+(s|m|h))+$"},
    "commonLabels": _STRINGS,
    # In a file Dask takes a key with dots for a name.
    "dask.config": {"patternProperties": {"^[^.]+$": {}}, "additionalProperties": False},
    "dump.directory": _ABSOLUTE_OR_NONE,
    "dump.hostPath": _ABSOLUTE_OR_NONE,
    "dump.runAsGroup": {"type": ["integer", "null"], "minimum": 0},
    "dump.runAsUser": {"type": ["integer", "null"], "minimum": 0},
    "dump.supplementalGroups": {"items": {"type": "integer", "minimum": 0}},
    "egress.to": _OBJECTS,
    "existingClaim": _NAME,
    "existingConfigMap": _NAME,
    "existingSecret": _NAME,
    "extraArgs": _TEXTS,
    "extraEnv": _NAMED,
    "extraFrom": _OBJECTS,
    "extraVolumeMounts": _NAMED,
    "extraVolumes": _NAMED,
    "firstPort": _PORT,
    "fullnameOverride": _NAME,
    "httpPort": _PORT,
    "image.digest": {"pattern": r"^$|^sha256:[0-9a-f]{64}$"},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "image.pullSecrets": _NAMED,
    "image.repository": {"minLength": 1},
    "interval": _DURATION,
    "keda.serverAddress": {"pattern": r"^$|^https?://"},
    "labels": _STRINGS,
    "lifetime": {"pattern": r"^$|^[0-9]+ ?[a-z]+$"},
    "maxReplicas": {"minimum": 1},
    "maxUnavailable": {"type": ["integer", "string"], "minimum": 0, "pattern": "^[0-9]+%$"},
    "metricRelabelings": _OBJECTS,
    "metricsPort": _PORT,
    "minReplicas": {"minimum": 0},
    "monitoringFrom": _OBJECTS,
    "mountPath": _ABSOLUTE,
    "nameOverride": _NAME,
    "namespace": _NAME,
    "nodeSelector": _STRINGS,
    "ownWorkers": {"minimum": 1},
    "patienceSeconds": {"type": "number", "minimum": 0},
    "podAnnotations": _STRINGS,
    "podLabels": _STRINGS,
    "pollSeconds": {"type": "number", "minimum": 0.1},
    "port": _PORT,
    "ports.http": _PORT,
    "ports.nanny": _PORT,
    "ports.worker": _PORT,
    "prometheusRule.disabled": _TEXTS,
    "prometheusRule.overrides": {
        "additionalProperties": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "expr": {"type": "string", "minLength": 1},
                "for": _DURATION | {"type": "string"},
                "keep_firing_for": _DURATION | {"type": "string"},
                "labels": _STRINGS | {"type": "object"},
                "annotations": _STRINGS | {"type": "object"},
            },
        }
    },
    "relabelings": _OBJECTS,
    "replicas": {"minimum": 0},
    "resources": {
        "additionalProperties": False,
        "properties": {"limits": _QUANTITIES, "requests": _QUANTITIES, "claims": {"type": "array"}},
    },
    "ruleLabels": _STRINGS,
    "schedule": {"minLength": 9},
    "scheduler.address": {"pattern": r"^$|^(tcp|tls)://[^/]+:[0-9]+$"},
    "scrapeTimeout": _DURATION,
    "service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "serviceAccount.name": _NAME,
    "storage.endpointUrl": {"pattern": r"^$|^https?://"},
    "targetCPUUtilizationPercentage": {"minimum": 1},
    "terminationGracePeriodSeconds": {"type": ["integer", "null"], "minimum": 0},
    "threads": {"minimum": 1, "maximum": 64},
    "tls.source": {"enum": ["generate", "certManager", "existingSecret"]},
    "tmpSizeLimit": {"pattern": r"^[0-9.]+([kKMGT]i?)?$"},
    "tolerations": _OBJECTS,
    "topologySpreadConstraints": _OBJECTS,
    "validityDays": {"minimum": 1},
    "watcher.mode": {"enum": ["daemonset", "deployment", "sidecar", "none"]},
    "watcher.nodeLocal": {"type": ["boolean", "null"]},
    "watcher.worker.count": {"minimum": 0, "maximum": 32},
    "worker.enabled": {"type": ["boolean", "null"]},
}

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


@dataclass(frozen=True)
class Value:
    """One entry of values.yaml, with the comment above it."""

    path: str
    default: Any
    said: str
    """What its `# -- ` comment says; "" where it is only a map of others."""
    shown: str
    """What its `@default` comment says."""
    children: tuple[Value, ...] = ()

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return self.path.rpartition(".")[2]


def values() -> tuple[Value, ...]:
    """Read values.yaml with its comments."""
    text = (CHART / "values.yaml").read_text()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise SystemExit("values.yaml is no map")
    return tuple(_children(root, "", yaml.safe_load(text), text.splitlines()))


def _children(
    node: yaml.MappingNode, before: str, defaults: Mapping[str, Any], lines: list[str]
) -> Iterator[Value]:
    missing = []
    for key, value in node.value:
        path = f"{before}{key.value}"
        said, shown = _comment(lines, key.start_mark.line)
        children: tuple[Value, ...] = ()
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            children = tuple(_children(value, f"{path}.", defaults[key.value], lines))
        if said or children:
            yield Value(path, defaults[key.value], said, shown, children)
        else:
            missing.append(path)
    # Without any comment it is a map of somebody else, such as a probe.
    if missing and len(missing) < len(node.value):
        raise SystemExit(f"values.yaml: no `# -- ` comment: {', '.join(missing)}")


def _comment(lines: list[str], line: int) -> tuple[str, str]:
    above: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        above.insert(0, lines[line].lstrip().removeprefix("#").strip())
    said, shown = [], ""
    for one in above:
        if one.startswith("-- "):
            said = [one.removeprefix("-- ")]
        elif one.startswith("@default -- "):
            shown = one.removeprefix("@default -- ")
        elif said:
            said.append(one)
    return " ".join(said), shown


def schema() -> str:
    """Return values.schema.json."""
    top = _own_map(values())
    # What an umbrella chart gives to all of its charts.
    top["properties"]["global"] = {"type": "object"}
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of dump-ingest"}
    return json.dumps(head | top, indent=2) + "\n"


def _own_map(entries: tuple[Value, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        # `null` takes a key away: right for a probe, wrong for what templates rely on.
        "required": [
            entry.name
            for entry in entries
            if entry.children or entry.path == "config" or isinstance(entry.default, bool | int | str)
        ],
        "properties": {entry.name: _schema_of(entry) for entry in entries},
    }


def _schema_of(entry: Value) -> dict[str, Any]:
    about = {"description": entry.said} if entry.said else {}
    if entry.path == "config":
        return about | _settings_schema()
    if entry.children:
        return about | _own_map(entry.children)
    parts = entry.path.split(".")
    rules = [RULES[end] for i in range(len(parts)) if (end := ".".join(parts[i:])) in RULES]
    rule = dict(rules[0]) if rules else {}
    if "type" not in rule:
        if entry.default is None:
            raise SystemExit(f"generate.py: RULES must give the type of {entry.path}, whose default is null")
        rule["type"] = _TYPES[type(entry.default)]
    return about | rule


def _settings_schema() -> dict[str, Any]:
    made = Settings.model_json_schema()
    properties = {name: _setting(one) for name, one in made["properties"].items()}
    properties["rank_map"] |= {
        "type": ["object", "string"],
        "patternProperties": {"^[0-9]+$": {"type": "integer", "minimum": 0}},
        "additionalProperties": False,
    }
    # A directory of a container must be absolute, and another process cannot see what is in memory.
    properties["store"] |= {"pattern": r"^$|^/.|^[a-z0-9+]+://.", "not": {"pattern": "^memory:"}}
    # No credentials: they would stand in a ConfigMap.
    secrets = ("key", "secret", "token", "password", "username")
    properties["store_options"] |= {"properties": dict.fromkeys(secrets, False)}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _setting(made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a setting as Helm is to have it: no null, which would take the key away."""
    kept = {k: v for k, v in made.items() if k not in {"anyOf", "title", "default", "gt", "ge"}}
    choices = [one for one in made.get("anyOf", ()) if one.get("type") != "null"]
    if {one.get("type") for one in choices} == {"string", "integer"}:
        # A number of bytes. Helm reads great numbers as floats.
        least = made.get("ge", 1 if made.get("gt") == 0 else 0)
        return kept | {"type": ["string", "number"], "pattern": _BYTES, "minimum": least}
    if len(choices) > 1:
        return kept | {"anyOf": choices}
    return kept | (dict(choices[0]) if choices else {})


def readme() -> str:
    """Return README.md with its table made anew."""
    rows = ["| Value | Default | Meaning |\n|---|---|---|\n"]
    for entry in _leaves(values()):
        default = entry.shown or f"`{json.dumps(entry.default)}`"
        rows.append(f"| `{entry.path}` | {default} | {entry.said} |\n".replace("||", "|"))
    text = (CHART / "README.md").read_text()
    table = "".join(rows)
    made, found = _TABLE.subn(lambda _: table, text)
    if found != 1:
        raise SystemExit("README.md: the marks around the table are gone")
    return made


def _leaves(entries: tuple[Value, ...]) -> Iterator[Value]:
    for entry in entries:
        if entry.said:
            yield entry
        yield from _leaves(entry.children)


def files() -> dict[Path, str]:
    """Return all files that are made, and what is to be in them."""
    made = {CHART / "values.schema.json": schema(), CHART / "README.md": readme()}
    rules = DEPLOY / "prometheus" / "rules.yml"
    if rules.exists():
        made[CHART / "files" / "rules.yml"] = rules.read_text()
    for dashboard in sorted((DEPLOY / "grafana").glob("**/*.json")):
        made[CHART / "files" / "dashboards" / dashboard.name] = dashboard.read_text()
    return made


def main() -> int:
    """Write what is not current; with `--check`, only name it and return 1."""
    made = files()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    found = {path for path in (CHART / "files").rglob("*") if path.is_file()}
    left = sorted(found - set(made))
    check = sys.argv[1:] == ["--check"]
    for path in [*stale, *left]:
        sys.stderr.write(f"{path.relative_to(HELM.parent)}{' is not current: make chart' if check else ''}\n")
    if check:
        return 1 if stale or left else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made[path])
    for path in left:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
