"""YAML files that a user writes: their values, and the line of each value for messages about it.

Only plain values are read. Tags that make Python objects are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from workers.errors import UsageError

Model = TypeVar("Model", bound=BaseModel)
#: The names and numbers that lead from the top of a file to a value.
Place: TypeAlias = Sequence[str | int]

#: So that a wrong file name does not read a dump.
MAX_NBYTES = 16 * 1024 * 1024
#: More than anybody writes, and less than Python's stack takes.
_MAX_DEPTH = 64
_INTEGER = "tag:yaml.org,2002:int"
#: More than anything here takes. Python writes no integer of more than 4300 digits, not even in an error.
_MAX_DIGITS = 1000
#: Clearer than the words of pydantic, by type of error.
_WORDS = {"extra_forbidden": "is not known", "model_type": "must hold names and values"}


@dataclass(frozen=True, slots=True)
class YamlFile:
    """The content of a file."""

    path: str
    value: Any
    _root: yaml.Node | None

    def at(self, *place: str | int) -> str:
        """Return `path:line` of a value, or of the nearest one above it if the place does not exist."""
        node, line = self._root, 1
        if node is not None:
            line = node.start_mark.line + 1
        for part in place:
            if isinstance(node, yaml.MappingNode):
                entries = [(key, value) for key, value in node.value if key.value == str(part)]
                if not entries:
                    break
                key, node = entries[0]
                line = key.start_mark.line + 1
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line + 1
            else:
                break
        return f"{self.path}:{line}"


def read_text(path: Path, *, max_nbytes: int = MAX_NBYTES, hint: str = "") -> str:
    """Return the text of a file.

    Raises:
        UsageError: the file cannot be read, is too large, or is not UTF-8 text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(max_nbytes + 1)
    except OSError as exc:
        raise UsageError(f"{path}: {exc.strerror}", hint=hint) from exc
    if len(data) > max_nbytes:
        raise UsageError(f"{path} is larger than {max_nbytes} bytes", hint="Is it the right file?")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise UsageError(f"{path} is not UTF-8 text", hint="Is it the right file?") from exc


def parse(text: str, path: str, *, strict: bool = True, hint: str = "") -> YamlFile:
    """Return the values of a text and their lines.

    Args:
        text: YAML.
        path: the name of the file, for messages.
        strict: whether to refuse aliases, with which a small file may expand to a huge one, and names that
            occur twice in a mapping, of which YAML would silently take the last.
        hint: what to do if it is wrong.

    Raises:
        UsageError: the text is not valid YAML, or is refused; the message names the line.
    """
    try:
        loader = (_StrictLoader if strict else _Loader)(text)
        root = loader.get_single_node()
        value = None if root is None else loader.construct_document(root)
    except (ComposerError, ConstructorError) as exc:
        raise UsageError(f"{_where(path, exc)}: {exc.problem}", hint=hint) from exc
    except yaml.YAMLError as exc:
        problem = getattr(exc, "problem", None) or " ".join(str(exc).split())
        raise UsageError(
            f"{_where(path, exc)}: not valid YAML: {problem}", hint="Check the indentation."
        ) from exc
    except RecursionError as exc:
        raise UsageError(f"{path}: nested too deeply", hint=hint) from exc
    return YamlFile(path, value, root)


def load_model(path: Path, model: type[Model], hint: str) -> Model:
    """Return the content of a file as a `model`. An empty file is an empty mapping.

    Raises:
        UsageError: the file cannot be read, is not valid YAML, or is not what the model describes. The
            message has a line for each mistake.
    """
    file = parse(read_text(path, hint=hint), str(path), strict=False, hint=hint)
    try:
        return model.model_validate({} if file.value is None else file.value)
    except ValidationError as exc:
        mistakes = [_explained(file, error["loc"], error["type"], error["msg"]) for error in exc.errors()]
        raise UsageError("\n".join(dict.fromkeys(mistakes)), hint=hint) from exc
    except RecursionError as exc:
        raise UsageError(f"{path} refers to itself", hint=hint) from exc


def _explained(file: YamlFile, place: Place, kind: str, message: str) -> str:
    name = ".".join(map(str, place))
    return f"{file.at(*place)}: {name + ': ' if name else ''}{_WORDS.get(kind, message)}"


def _where(path: str, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f"{path}:{mark.line + 1}" if mark else path


class _Loader(yaml.SafeLoader):
    """Names the line of every value that cannot be constructed; refuses what is nested too deeply.

    A scanner that is 100,000 brackets deep takes minutes, and Python's stack does not take as much.
    """

    def fetch_more_tokens(self) -> Any:
        if self.flow_level + len(self.indents) > _MAX_DEPTH:
            raise ComposerError(None, None, "nested too deeply", self.get_mark())
        return super().fetch_more_tokens()

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  (overrides)
        if node.tag == _INTEGER and len(node.value) > _MAX_DIGITS:
            problem = f"a number of {len(node.value)} digits is too long"
            raise ConstructorError(None, None, problem, node.start_mark)
        try:
            return super().construct_object(node, deep)
        except ValueError as exc:  # such as the 30th of February
            raise ConstructorError(None, None, str(exc), node.start_mark) from exc


class _StrictLoader(_Loader):
    """Refuses aliases, and names that occur twice."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.get_event().start_mark  # type: ignore[no-untyped-call]  # no types in PyYAML
            raise ComposerError(None, None, "aliases are not allowed here: write the value again", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002  (overrides)
        names = set()
        for key in [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]:
            if key.value in names:
                raise ConstructorError(None, None, f"{key.value} occurs twice", key.start_mark)
            names.add(key.value)
        return super().construct_mapping(node, deep)
