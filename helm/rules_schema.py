"""JSON schema of anomaly rules, in a form whose errors name the field that is wrong."""

from __future__ import annotations

from typing import Any, TypeAlias

from workers.rules.schema import MODELS, load_rules

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
