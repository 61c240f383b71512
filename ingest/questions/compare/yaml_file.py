"""YAML files that a user writes, checked against a schema; what is wrong with them is said with its line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from workers.errors import UsageError

Model = TypeVar("Model", bound=BaseModel)

#: What is said instead of words about Python.
_WORDS = {"extra_forbidden": "is not known", "model_type": "must hold names and values"}
_MAX_NBYTES = 16 * 1024 * 1024


def load_yaml(path: Path, model: type[Model], hint: str) -> Model:
    """Return the content of a YAML file as a `model`. Plain values only: tags that make objects are refused.

    Raises:
        UsageError: the file cannot be read, is no YAML, or not what the model asks for.
    """
    try:
        if path.stat().st_size > _MAX_NBYTES:
            raise UsageError(f"{path} is too large for a file that somebody wrote", hint=hint)
        text = path.read_text("utf-8")
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        found = yaml.safe_load(text)
    except OSError as exc:
        raise UsageError(f"{path}: {exc.strerror}", hint=hint) from exc
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise UsageError(f"{path} is no YAML: {' '.join(str(exc).split())}", hint=hint) from exc
    try:
        return model.model_validate({} if found is None else found)
    except ValidationError as exc:
        said = "\n".join(dict.fromkeys(_explain(path, tree, one) for one in exc.errors()))
        raise UsageError(said, hint=hint) from exc
    except RecursionError as exc:
        raise UsageError(f"{path} refers to itself", hint=hint) from exc


def _explain(path: Path, tree: yaml.Node | None, error: object) -> str:
    assert isinstance(error, dict)  # noqa: S101  (for mypy)
    place: Sequence[str | int] = error["loc"]
    line = _line(tree, place)
    name = ".".join(map(str, place))
    what = _WORDS.get(error["type"], str(error["msg"]))
    return f"{path}:{line}: {name + ': ' if name else ''}{what}"


def _line(node: yaml.Node | None, place: Sequence[str | int]) -> int:
    """Return the line of what a path of names and numbers leads to, or of what is nearest above it."""
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
