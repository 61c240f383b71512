"""The tables of docs/rules.md, made from the rules and their schema.

python -m workers.rules.table           prints them
python -m workers.rules.table --write   writes them into the page
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from workers.rules.load import load_rules
from workers.rules.schema import MODELS, BaseRule, StepRule
from workers.rules.values import Scope

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"
#: Stand before and behind each table in the page.
_BEGIN, _END = "<!-- {name}: made by `make generated` -->", "<!-- end of {name} -->"


def tables() -> dict[str, str]:
    """Return, as Markdown, the built-in rules, the kinds of rules, and the fields that all rules have."""
    return {"built-in rules": _built_in(), "kinds": _kinds(), "fields": _fields()}


def filled(page: str) -> str:
    """Return the text of the page with each table between its markers.

    Raises:
        ValueError: the page lacks the markers of a table.
    """
    for name, table in tables().items():
        begin, end = _BEGIN.format(name=name), _END.format(name=name)
        between = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
        page, count = between.subn(lambda _, new=f"{begin}\n\n{table}\n{end}": new, page)  # type: ignore[misc]
        if count != 1:
            message = f"{PAGE.name} must have the lines {begin!r} and {end!r} once"
            raise ValueError(message)
    return page


def _built_in() -> str:
    rows = ["| Rule | Severity | What it asks | Meaning | Source |", "|---|---|---|---|---|"]
    rows += [
        f"| `{rule.name}` | {rule.severity} | {_parameters(rule)} "
        f"| {_cell(rule.description)} | {_cell(rule.source)} |"
        for rule in load_rules().rules
    ]
    return "\n".join(rows) + "\n"


def _parameters(rule: BaseRule) -> str:
    """Return the kind of a rule with the values of the fields that only this kind has."""
    values = rule.model_dump(mode="json")
    given = [f"{name} {_value(values[name])}" for name in rule.own_fields() if values[name] is not None]
    return f"`{rule.kind}`" + (f": {', '.join(given)}" if given else "")


def _kinds() -> str:
    rows = ["| Kind | Looks at | Fires for | Additional fields, with defaults |", "|---|---|---|---|"]
    for kind, model in MODELS.items():
        summary = (model.__doc__ or "").strip().partition("\n")[0]
        fields = [
            f"`{name}`"
            + ("" if field.is_required() or field.default is None else f" {_value(field.default)}")
            for name, field in model.own_fields().items()
        ]
        rows.append(f"| `{kind}` | {model.scope} | {_cell(summary)} | {', '.join(fields)} |")
    return "\n".join(rows) + "\n"


def _fields() -> str:
    rows = ["| Field | Meaning |", "|---|---|"]
    for name in (*BaseRule.model_fields, *(name for name in StepRule.model_fields if name in _STEP_ONLY)):
        only = f" Only for kinds that look at {Scope.STEP}." if name in _STEP_ONLY else ""
        rows.append(f"| `{name}` | {_cell(StepRule.model_fields[name].description or '')}{only} |")
    return "\n".join(rows) + "\n"


_STEP_ONLY = StepRule.model_fields.keys() - BaseRule.model_fields.keys()


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|x|", "magnitudes").replace("|", "\\|")


def main(arguments: list[str]) -> None:
    """Print the tables, or write them into the page."""
    if arguments == ["--write"]:
        PAGE.write_text(filled(PAGE.read_text("utf-8")), "utf-8")
    else:
        print("\n".join(tables().values()))  # noqa: T201  (a program)


if __name__ == "__main__":
    main(sys.argv[1:])
