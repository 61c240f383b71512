"""The files of a dump that are not tensors, as the store keeps them: found by name, read in pieces.

Also two kinds of their content: JSON files in which msProbe and MindSpore tell of calls, with frames of call
stacks; and the configuration with which a dump was made, which says what was asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ingest.dump_configs.model import AskedDump, read_acl, read_mindspore
from workers.errors import DamagedStore, UsageError
from workers.model import MIB
from workers.store.model import RowKind

if TYPE_CHECKING:
    from ingest.reader.catalog import Catalog
    from ingest.reader.step import Step
    from ingest.reader.tensor import Tensor


_PIECE_NBYTES = 4 * MIB
#: Larger files are not read if they would have to be in memory completely.
MAX_WHOLE_NBYTES = 512 * MIB
_MAX_PROBLEMS = 20

_T = TypeVar("_T")


class Problems(list[str]):
    """What is wrong with one file, up to twenty: a damaged file could have a problem in each line."""

    def append(self, problem: str) -> None:
        """Add a problem, unless there are many."""
        if len(self) < _MAX_PROBLEMS:
            super().append(problem)


@dataclass(frozen=True, slots=True, eq=False)
class NonTensorFile:
    """One file in the store that is not a tensor; `source` is its path, relative to the dump."""

    step: Step
    row: int
    source: str

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.source.rpartition("/")[2]

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return int(self.step.tables.number("nbytes")[self.row])


@dataclass(eq=False)
class NonTensorFiles:
    """The files of one rank that are not tensors, by step, and the problems of those that were read."""

    store: Catalog
    rank: int
    problems: list[str] = field(default_factory=list)
    _files: dict[tuple[int, int | None], dict[str, NonTensorFile]] = field(default_factory=dict)
    """By rank and step, then path."""

    def of_step(self, step: int | None) -> Mapping[str, NonTensorFile]:
        """Return the files of a step by path; with None, those that do not belong to a step."""
        return self._of(self.rank, step)

    def nearest_above(self, step: int | None, source: str, name: str) -> NonTensorFile | None:
        """Return the file of that name in the directory of the path `source`, or in the next one above it."""
        files, directory = self.of_step(step), source
        while directory:
            directory = directory.rpartition("/")[0]
            if file := files.get(f"{directory}/{name}" if directory else name):
                return file
        return None

    def of_run(self, name: re.Pattern[str]) -> list[NonTensorFile]:
        """Return the files with a matching name that do not belong to a step.

        If this rank has none, those of the lowest rank that has: MindSpore writes some only for rank 0.
        """
        own = self._of(self.rank, None).values()
        if files := [file for file in own if name.fullmatch(file.name)]:
            return files
        others = (self._of(rank, None).values() for rank in self.store.ranks if rank != self.rank)
        named = ([file for file in files if name.fullmatch(file.name)] for files in others)
        return next(filter(None, named), [])

    def read(self, file: NonTensorFile, *, limit: int = MAX_WHOLE_NBYTES) -> bytes | None:
        """Return the content; None, and a problem, if it is damaged or has more than `limit` bytes."""
        if file.nbytes > limit:
            self.problems.append(f"{file.source}: {file.nbytes} bytes, more than the {limit} that are read")
            return None
        return self.parse(file, b"".join)

    def parse(self, file: NonTensorFile, parse: Callable[[Iterable[bytes]], _T]) -> _T | None:
        """Return what `parse` returns for the content in pieces; None, and a problem, if it is damaged."""
        try:
            for _, pieces in file.step.payloads([file.row], _PIECE_NBYTES):
                return parse(pieces)
        except DamagedStore as exc:
            self.problems.append(f"{file.source}: {exc.message}")
        return None

    def add_problems(self, file: NonTensorFile, problems: Iterable[str]) -> None:
        """Add the problems that a parser reported for a file."""
        self.problems += [f"{file.source}: {problem}" for problem in problems]

    def _of(self, rank: int, step: int | None) -> dict[str, NonTensorFile]:
        if (rank, step) not in self._files:
            files = self._files[rank, step] = {}
            try:
                opened = self.store.step(rank, step)
                kinds, sources = opened.tables.label("kind"), opened.tables.label("source")
            except UsageError:  # it is not in the store
                return files
            except DamagedStore as exc:
                self.problems.append(exc.message)
                return files
            for row in np.flatnonzero(kinds == RowKind.FILE.value).tolist():
                files[str(sources[row])] = NonTensorFile(opened, row, str(sources[row]))
        return self._files[rank, step]


def nearest(files: Iterable[NonTensorFile], source: str) -> NonTensorFile | None:
    """Return the file whose path has the longest beginning in common with `source`: dumps can be nested."""
    parts = source.split("/")

    def shared_parts(file: NonTensorFile) -> int:
        own = file.source.split("/")
        return next((n for n, (a, b) in enumerate(zip(own, parts, strict=False)) if a != b), len(own))

    return max(files, key=shared_parts, default=None)


#: The frameworks and their tools, at any place of installation, and the standard library of Python.
_FRAMEWORK = re.compile(
    r"(?:^|/)(?:"
    r"(?:site-packages|dist-packages|mindspore|package|python)/mindspore/"
    r"|(?:site-packages|dist-packages)/(?:torch|torch_npu|torchair|msprobe|mindtorch)/"
    r"|msprobe/(?:core|mindspore|pytorch)/"
    r"|lib(?:64)?/python3\.\d{1,3}/(?!site-packages/|dist-packages/)"
    r")"
)
_LINE = re.compile(
    r"\s*File (?P<file>.*?), line (?P<line>\d{1,9}), in (?P<function>[^,\n]*)(?P<code>.*)", re.DOTALL
)
#: Calls without a stack of their own, and the forward call whose stack stands for it.
_FORWARD = (
    (re.compile(r"(.*)\.backward"), r"\1.forward"),
    (re.compile(r"(.*)\.backward\.(\d+)"), r"\1.forward.\2"),
    (re.compile(r"(.*)\.parameters_grad"), r"\1.forward.0"),
    (re.compile(r"(.*)\.parameters_grad\.(\d+)"), r"\1.forward.\2"),
)
#: Parts of a name, separated by dots.
_MAX_PARTS = 100


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a call stack."""

    file: str
    """A path on the machine that trained, as the dump has it."""
    line: int
    code: str
    function: str = ""

    @property
    def is_framework(self) -> bool:
        """Whether the line belongs to the framework or to Python, and not to the user's own code."""
        path = self.file.replace("\\", "/")
        return path.startswith("<") or _FRAMEWORK.search(path) is not None


@dataclass(frozen=True, slots=True)
class SourceLine:
    """The line of a program that made an operator."""

    file: str
    line: int
    code: str
    stack: tuple[Frame, ...]
    """From outermost to innermost."""
    matched: str
    """How the operator was matched with one in `source`: `exact`, or `by scope and type`."""
    of: str
    """Whose line it is: of the `op` itself, of one `fused op` in it, or of the `forward op` of a gradient."""
    op: str
    source: str
    """The file of the dump that has the line."""


def best_frame(stack: Sequence[Frame]) -> Frame | None:
    """Return the innermost line of the user's own code; if there is none, the innermost line of all.

    Args:
        stack: from outermost to innermost.
    """
    own = (frame for frame in reversed(stack) if not frame.is_framework)
    return next(own, stack[-1] if stack else None)


def parse_stacks(data: bytes) -> tuple[dict[str, tuple[Frame, ...]], Problems]:
    """Parse msProbe's `stack.json` in either form: `{"0": [[keys], [lines]]}` or (older) `{key: [lines]}`.

    Returns:
        The stacks by the key of the call, each from outermost to innermost (the file has it the other way
        round); and the problems.
    """
    stacks: dict[str, tuple[Frame, ...]] = {}
    content, problems = _parse_object(data)
    for name, value in content.items():
        if not isinstance(value, list):
            problems.append(f"{name!r} does not have a list of lines")
        elif len(value) == 2 and all(isinstance(part, list) for part in value):
            frames = _frames(value[1], problems)
            stacks.update((key, frames) for key in value[0] if isinstance(key, str))
        else:
            stacks[name] = _frames(value, problems)
    return stacks, problems


def _frames(lines: Iterable[Any], problems: Problems) -> tuple[Frame, ...]:
    frames = []
    for line in lines:
        if isinstance(line, str) and (parsed := _LINE.match(line)):
            code = parsed["code"].lstrip(",").strip()
            frames.append(Frame(parsed["file"], int(parsed["line"]), code, parsed["function"].strip()))
        else:
            problems.append(f"is not a line of a stack: {str(line)[:100]!r}")
    return tuple(reversed(frames))


def parse_construct(data: bytes) -> tuple[dict[str, str | None], Problems]:
    """Parse msProbe's `construct.json`: the key of each call, with that of the module that made the call.

    Returns:
        The parents by key, None for an outermost call (older versions write ""); and the problems.
    """
    content, problems = _parse_object(data)
    for key, parent in content.items():
        if not isinstance(parent, str | None):
            problems.append(f"the parent of {key!r} is not a name")
    return {key: name or None for key, name in content.items() if isinstance(name, str | None)}, problems


def parse_kernel_args(data: bytes) -> tuple[dict[str, str], Problems]:
    """Parse the arguments of one kernel (`save_kernel_args`): `{"transpose_a": "False"}`.

    Returns:
        The arguments, each as text; and the problems.
    """
    content, problems = _parse_object(data)
    return {name: arg if isinstance(arg, str) else json.dumps(arg) for name, arg in content.items()}, problems


def _parse_object(data: bytes) -> tuple[dict[str, Any], Problems]:
    try:
        content = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as exc:
        return {}, Problems([f"is not JSON: {exc}"])
    return (content, Problems()) if isinstance(content, dict) else ({}, Problems(["is not a JSON object"]))


def call_texts(tensor: Tensor) -> list[str]:
    """Return texts that may begin with the key of an msProbe call: the names of the file and the operator."""
    stem = tensor.source.rpartition("/")[2].removesuffix(".npy").removesuffix(".pt")
    return [stem, f"{tensor.op_type}.{tensor.op_name}", tensor.op_name]


def find_key(texts: Iterable[str], known: Container[str]) -> str | None:
    """Return the key of the call of a tensor: the longest known beginning of a text, up to a dot.

    >>> find_key(["Functional.relu.0.forward.input.0"], {"Functional.relu.0.forward"})
    'Functional.relu.0.forward'
    """
    return next((key for text in texts for key in _beginnings(text) if key in known), None)


def find_stack(texts: Sequence[str], stacks: Container[str]) -> tuple[str, str] | None:
    """Return the key of the call whose stack belongs to a tensor, and whose it is: `op` or `forward op`.

    msProbe does not keep stacks of backward calls, which the framework makes. The stack of the forward call
    stands for them.
    """
    if (key := find_key(texts, stacks)) is not None:
        return key, "op"
    forward = (
        match.expand(template)
        for text in texts
        for beginning in _beginnings(text)
        for pattern, template in _FORWARD
        if (match := pattern.fullmatch(beginning))
    )
    return next(((key, "forward op") for key in forward if key in stacks), None)


def _beginnings(text: str) -> Iterator[str]:
    parts = text.split(".")[:_MAX_PARTS]
    return (".".join(parts[:end]) for end in range(len(parts), 0, -1))


_MINDSPORE = re.compile(r"data_dump\.json")
#: Where MindSpore copies it, below the directory of a rank.
COPIES = "rank_*/.dump_metadata/data_dump.json"
_ABOUT = re.compile(r"config\.json")
_ACL = re.compile(r"(?:acl_dump_\d+|acl|kernel_config_.+)\.json")


@dataclass(frozen=True, slots=True)
class DumpConfiguration:
    """What a dump says of how it was made."""

    source: str
    """The path of the configuration, relative to the dump; "" if the dump has none."""
    content: Mapping[str, Any] = field(default_factory=dict)
    asked: AskedDump = field(default_factory=AskedDump)
    version: str = ""
    device: str = ""


def configuration_of(store: Catalog, rank: int) -> DumpConfiguration:
    """Return the configuration of the dump of a rank; an empty one if the dump does not have it.

    That of another rank stands for it: MindSpore writes it for rank 0 alone. Reads two small files at most.
    """
    files = NonTensorFiles(store, rank)
    about, _ = _first(files, _ABOUT)
    version, device = str(about.get("ms_version", "")), str(about.get("device_target", ""))
    for name, read in ((_MINDSPORE, read_mindspore), (_ACL, read_acl)):
        content, file = _first(files, name)
        if file is not None and content:
            return DumpConfiguration(file.source, content, read(content), version, device)
    return DumpConfiguration("", version=version, device=device)


def sample_of(store: Catalog, rank: int) -> int:
    """Return how many elements the dump has of the beginning and of the end of a tensor; 0: all of them."""
    return configuration_of(store, rank).asked.sample


def sample_of_dump(root: Path) -> int:
    """Return the same for a dump that is read where it lies."""
    for path in sorted(root.glob(COPIES))[:1]:
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return 0
        return read_mindspore(content).sample if isinstance(content, dict) else 0
    return 0


def _first(files: NonTensorFiles, name: re.Pattern[str]) -> tuple[Mapping[str, Any], NonTensorFile | None]:
    for file in files.of_run(name):
        data = files.read(file, limit=MIB)
        try:
            content = json.loads(data or b"null")
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            return content, file
    return {}, None
