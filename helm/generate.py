#!/usr/bin/env python3
"""Makes the generated parts of the Helm chart. `--check` only names the parts that are not current.

- `values.schema.json`: types and descriptions from `values.yaml`, limits from `limits.py`, and below `config`
  the settings of `dump-ingest`, so that a wrong setting fails before anything is installed.
- The table in `README.md`: from the `# -- ` comments of `values.yaml`.
- `files/`: alert rules and dashboards of `deploy/`, because Helm reads nothing outside a chart. In the alert
  rules, each selector names the release. `known.yml` tells templates the options of commands, and more.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from helm.limits import LIMITS
from ingest.cli.app import load_command
from ingest.settings import Settings
from workers.arrays.statistics import SUMS
from workers.rules.schema import MODELS, load_rules
from workers.rules.step import COLUMNS
from workers.store.sketch_names import COUNTS, LOSS, PERCENTILE

HELM = Path(__file__).parent
CHART = HELM / "dump-ingest"
DEPLOY = HELM.parent / "deploy"
_TABLE = re.compile(r"(?<=<!-- values -->\n).*?(?=<!-- end of values -->)", re.DOTALL)

_BYTES = r"^\s*[0-9]*\.?[0-9]+\s*([kmgtpeKMGTPE]?[iI]?[bB])?\s*$"

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


@dataclass(frozen=True)
class Value:
    """One entry of values.yaml, with the comment above it."""

    path: str
    default: Any
    description: str
    """Its `# -- ` comment; "" if it is only a map of other values."""
    shown_default: str
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
        raise SystemExit("values.yaml is not a map")
    return tuple(_children(root, "", yaml.safe_load(text), text.splitlines()))


def _children(
    node: yaml.MappingNode, before: str, defaults: Mapping[str, Any], lines: list[str]
) -> Iterator[Value]:
    missing = []
    for key, value in node.value:
        path = f"{before}{key.value}"
        description, shown_default = _comment(lines, key.start_mark.line)
        children: tuple[Value, ...] = ()
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            children = tuple(_children(value, f"{path}.", defaults[key.value], lines))
        if description or children:
            yield Value(path, defaults[key.value], description, shown_default, children)
        else:
            missing.append(path)
    # A map without any comment is defined by Kubernetes, such as a probe.
    if missing and len(missing) < len(node.value):
        raise SystemExit(f"values.yaml: these values need a `# -- ` comment: {', '.join(missing)}")


def _comment(lines: list[str], line: int) -> tuple[str, str]:
    above: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        above.insert(0, lines[line].lstrip().removeprefix("#").strip())
    description, shown_default = [], ""
    for comment in above:
        if comment.startswith("-- "):
            description = [comment.removeprefix("-- ")]
        elif comment.startswith("@default -- "):
            shown_default = comment.removeprefix("@default -- ")
        elif description:
            description.append(comment)
    return " ".join(description), shown_default


def schema() -> str:
    """Return values.schema.json."""
    top = _own_map(values())
    # An umbrella chart passes it to all of its charts, with values for others.
    top["properties"]["global"].pop("required")
    top["properties"]["global"]["additionalProperties"] = True
    top["definitions"] = definitions()
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of dump-ingest"}
    return json.dumps(head | top, indent=2) + "\n"


def _own_map(entries: tuple[Value, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        # `null` removes a key: useful for a probe, wrong for a value that templates rely on.
        "required": [
            entry.name
            for entry in entries
            if entry.children or entry.path == "config" or isinstance(entry.default, bool | int | str)
        ],
        "properties": {entry.name: _schema_of(entry) for entry in entries},
    }


def _schema_of(entry: Value) -> dict[str, Any]:
    about = {"description": entry.description} if entry.description else {}
    if entry.path == "config":
        return about | _settings_schema()
    if entry.children:
        return about | _own_map(entry.children)
    parts = entry.path.split(".")
    rules = [LIMITS[end] for i in range(len(parts)) if (end := ".".join(parts[i:])) in LIMITS]
    rule = dict(rules[0]) if rules else {}
    if "type" not in rule:
        if entry.default is None:
            raise SystemExit(
                f"generate.py: add the type of {entry.path} to LIMITS, because its default is null"
            )
        rule["type"] = _TYPES[type(entry.default)]
    return about | rule


def _settings_schema() -> dict[str, Any]:
    generated = Settings.model_json_schema()
    properties = {name: _setting(setting) for name, setting in generated["properties"].items()}
    properties["rank_map"] |= {
        "type": ["object", "string"],
        "patternProperties": {"^[0-9]+$": {"type": "integer", "minimum": 0}},
        "additionalProperties": False,
    }
    # A directory in a container must be absolute, and a store in memory is visible to one process only.
    properties["store"] |= {"pattern": r"^$|^/.|^[a-z0-9+]+://.", "not": {"pattern": "^memory:"}}
    # Credentials are refused: they would end up in a ConfigMap.
    secrets = ("key", "secret", "token", "password", "username")
    properties["store_options"] |= {"properties": dict.fromkeys(secrets, False)}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _setting(generated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a setting for Helm: without null, which would remove the key."""
    kept = {k: v for k, v in generated.items() if k not in {"anyOf", "title", "default", "gt", "ge"}}
    choices = [choice for choice in generated.get("anyOf", ()) if choice.get("type") != "null"]
    if {choice.get("type") for choice in choices} == {"string", "integer"}:
        # A number of bytes. Helm reads large numbers as floats.
        least = generated.get("ge", 1 if generated.get("gt") == 0 else 0)
        return kept | {"type": ["string", "number"], "pattern": _BYTES, "minimum": least}
    if len(choices) > 1:
        return kept | {"anyOf": choices}
    return kept | (dict(choices[0]) if choices else {})


def readme() -> str:
    """Return README.md with a new table of values."""
    rows = ["| Value | Default | Meaning |\n|---|---|---|\n"]
    for entry in _leaves(values()):
        default = entry.shown_default or f"`{json.dumps(entry.default)}`"
        rows.append(f"| `{entry.path}` | {default} | {entry.description} |\n".replace("||", "|"))
    table = "".join(rows)
    text, count = _TABLE.subn(lambda _: table, (CHART / "README.md").read_text())
    if count != 1:
        raise SystemExit("README.md: the comments around the table of values are missing")
    return text


def _leaves(entries: tuple[Value, ...]) -> Iterator[Value]:
    for entry in entries:
        if entry.description:
            yield entry
        yield from _leaves(entry.children)


def files() -> dict[Path, str]:
    """Return the content of all generated files."""
    generated = {
        CHART / "values.schema.json": schema(),
        CHART / "README.md": readme(),
        CHART / "files" / "known.yml": known(),
    }
    rules = DEPLOY / "prometheus" / "rules.yml"
    if rules.exists():
        generated[CHART / "files" / "rules.yml"] = of_one_release(rules.read_text())
    for dashboard in sorted((DEPLOY / "grafana").glob("**/*.json")):
        generated[CHART / "files" / "dashboards" / dashboard.name] = dashboard.read_text()
    return generated


def main() -> int:
    """Write or remove the files that are not current; with `--check`, only name them and return 1."""
    generated = files()
    stale = [path for path, text in generated.items() if not path.exists() or path.read_text() != text]
    obsolete = _obsolete(generated.keys())
    check = sys.argv[1:] == ["--check"]
    for path in [*stale, *obsolete]:
        sys.stderr.write(f"{path.relative_to(HELM.parent)}{' is not current: make chart' if check else ''}\n")
    if not check:
        _update({path: generated[path] for path in stale}, obsolete)
    return 1 if check and (stale or obsolete) else 0


def _obsolete(generated: Container[Path]) -> list[Path]:
    present = (path for path in (CHART / "files").rglob("*") if path.is_file())
    return sorted(path for path in present if path not in generated)


def _update(stale: Mapping[Path, str], obsolete: Iterable[Path]) -> None:
    for path, text in stale.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for path in obsolete:
        path.unlink()


#: What the chart replaces by the namespace and name of its release.
RELEASE = 'namespace="__NAMESPACE__",run="__RELEASE__"'
#: Metrics have these beginnings; nothing else in PromQL has.
_SELECTOR = re.compile(r"(?<![\w:])((?:dump_ingest|dask|process|kube|node)[_:][\w:]+|up)\b(\{)?")


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def with_matchers(expression: str, matchers: str) -> str:
    """Return a PromQL expression with label matchers added to each of its selectors."""
    return _SELECTOR.sub(lambda match: f"{match[1]}{{{matchers}{',' if match[2] else '}'}", expression)


def of_one_release(rules: str) -> str:
    """Return a file of Prometheus rules in which each selector has the matchers of `RELEASE`. Comments go."""
    groups: Any = yaml.safe_load(rules)
    for group in groups["groups"]:
        for rule in group["rules"]:
            rule["expr"] = with_matchers(rule["expr"], RELEASE)
    head = "# Made by helm/generate.py from deploy/prometheus/rules.yml.\n"
    return head + yaml.dump(groups, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)


Schema: TypeAlias = dict[str, Any]
#: Fields whose schema also has to permit what their validators convert.
_SPANS = {"type": ["array", "integer", "string"]}
_PATTERNS = {"type": ["array", "string"]}


def definitions() -> dict[str, Schema]:
    """Return the schemas of a rule and of each kind, for `definitions` of the chart's schema.

    A rule with a kind is checked by the schema of this kind. A rule without one changes the built-in rule of
    its name, so the fields of that rule's kind are permitted.
    """
    built_in = {rule.name: rule.kind for rule in load_rules().rules}
    cases: list[Schema] = [
        {
            "if": _has("kind", kind),
            "then": {"allOf": [{"$ref": f"#/definitions/{kind}"}, {"required": _required(kind)}]},
        }
        for kind in MODELS
    ]
    cases += [
        {
            "if": {"not": {"required": ["kind"]}, **_has("name", name)},
            "then": {"$ref": f"#/definitions/{kind}"},
        }
        for name, kind in built_in.items()
    ]
    rule: Schema = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}, "kind": {"enum": list(MODELS)}},
        "if": {"not": {"required": ["kind"]}},
        # Without a kind: the name of a built-in rule.
        "then": {"properties": {"name": {"enum": list(built_in)}}},
        "allOf": cases,
    }
    return {"rule": rule, **{kind: _fields(kind) for kind in MODELS}}


def _required(kind: str) -> list[str]:
    required: list[str] = MODELS[kind].model_json_schema()["required"]
    return required


def _has(field: str, value: str) -> Schema:
    return {"properties": {field: {"const": value}}, "required": [field]}


def _fields(kind: str) -> Schema:
    model = MODELS[kind].model_json_schema()
    fields = {name: _field(name, schema) for name, schema in model["properties"].items()}
    return {"type": "object", "additionalProperties": False, "properties": fields}


def _field(name: str, schema: Schema) -> Schema:
    if name == "rank":
        return _SPANS
    if schema.get("items") == {"type": "string"}:
        return _PATTERNS
    return {key: value for key, value in schema.items() if key not in {"title", "default", "description"}}


#: Commands that take `extraArgs`, and the value of the chart for each option that the chart itself sets.
SET_BY_CHART = {
    "watch": {
        "--config": "config",
        "--store": "config.store",
        "--scheduler": "scheduler.address",
        "--workers": "watcher.ownWorkers",
        "--metrics": "watcher.metrics",
    },
    "consolidate": {
        "--config": "config",
        "--follow": "nothing: the consolidator always follows",
        "--poll": "consolidator.pollSeconds",
        "--patience": "consolidator.patienceSeconds",
        "--metrics": "consolidator.metricsPort",
        "--scheduler": "consolidator.useScheduler",
    },
    "serve": {
        "--config": "config",
        "--listen": "page.port",
        "--open": "nothing: a container has no browser",
        "--base-path": "page.basePath",
        "--base-url": "config.page_url",
        "--token-file": "page.existingSecret",
        "--trust-header": "page.trustHeader",
        "--allow-anyone": "page.allowAnyone",
        "--watchers": "watcher.metrics",
        "--cache": "page.cacheSize",
        "--refresh": "page.refreshSeconds",
    },
    "gc": {"--config": "config", "--apply": "gc.enabled", "--plan": "the command itself, by hand"},
}
#: Options with which the command answers a question and ends, and those that belong to them.
_OF_PEOPLE = frozenset({"--help", "--explain", "--from", "--rank", "--step", "--check"})


def known() -> str:
    """Return `files/known.yml`: by command, whether each option takes a value; and names in conditions."""
    commands = {name: _options(load_command(name)) for name in SET_BY_CHART}
    words = {
        "options": commands,
        "setByChart": SET_BY_CHART,
        "columns": sorted({*COLUMNS, *SUMS, *COUNTS}),
        "columnsOfSketches": f"^({PERCENTILE.pattern}|{LOSS.pattern})$",
    }
    return "# Made by helm/generate.py.\n" + yaml.safe_dump(words)


def _options(command: Any) -> dict[str, bool]:
    return {
        word: not parameter.is_flag
        for parameter in command.params
        for word in (*parameter.opts, *parameter.secondary_opts)
        if word.startswith("--") and not _OF_PEOPLE & {*parameter.opts}
    }


if __name__ == "__main__":
    sys.exit(main())
