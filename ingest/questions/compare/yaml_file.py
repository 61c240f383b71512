"""YAML files that users write, checked against a schema; error messages name the line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from workers.errors import UsageError

Model = TypeVar("Model", bound=BaseModel)

#: Messages that replace those about Python.
_WORDS = {"extra_forbidden": "is not known", "model_type": "must hold names and values"}
_MAX_NBYTES = 16 * 1024 * 1024


def load_yaml(path: Path, model: type[Model], hint: str) -> Model:
    """Return the content of a YAML file as a `model`. Only plain values: tags that make objects are refused.

    Raises:
        UsageError: the file cannot be read, is not YAML, or does not fit the model.
    """
    try:
        if path.stat().st_size > _MAX_NBYTES:
            raise UsageError(
                f"{path} has more than {_MAX_NBYTES >> 20} MiB, too many for a file written by hand",
                hint=hint,
            )
        text = path.read_text("utf-8")
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except OSError as exc:
        raise UsageError(f"{path}: {exc.strerror}", hint=hint) from exc
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise UsageError(f"{path} is not valid YAML: {' '.join(str(exc).split())}", hint=hint) from exc
    try:
        return model.model_validate({} if content is None else content)
    except ValidationError as exc:
        problems = dict.fromkeys(_explain(path, tree, error) for error in exc.errors())
        raise UsageError("\n".join(problems), hint=hint) from exc
    except RecursionError as exc:
        raise UsageError(f"{path} refers to itself", hint=hint) from exc


def _explain(path: Path, tree: yaml.Node | None, error: object) -> str:
    assert isinstance(error, dict)  # noqa: S101  (for mypy)
    place: Sequence[str | int] = error["loc"]
    line = _line(tree, place)
    name = ".".join(map(str, place))
    what = _WORDS.get(error["type"], str(error["msg"]).removeprefix("Value error, "))
    return f"{path}:{line}: {name + ': ' if name else ''}{what}"


def _line(node: yaml.Node | None, place: Sequence[str | int]) -> int:
    """Return the line of the node that a path of names and numbers leads to, or of its nearest parent."""
    line = 1 if node is None else node.start_mark.line + 1
    for part in place:
        if isinstance(node, yaml.MappingNode):
            below = [(key, value) for key, value in node.value if key.value == str(part)]
            if not below:
                break
            line, node = below[0][0].start_mark.line + 1, below[0][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line
