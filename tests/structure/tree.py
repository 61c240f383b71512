"""Read and parse the source files of a tree, each once."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from tests.structure.graph import Graph, import_graph
from tests.structure.scan import PACKAGES


@dataclass(frozen=True, eq=False)
class Source:
    """One Python file."""

    path: PurePosixPath
    """The path from the root of the tree."""
    text: str

    @cached_property
    def syntax(self) -> ast.Module:
        """The parsed module."""
        return ast.parse(self.text, str(self.path))

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the parsed module."""
        return tuple(ast.walk(self.syntax))

    @property
    def module(self) -> str:
        """The name by which it is imported."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if self.is_init else parts)

    @property
    def is_init(self) -> bool:
        """Whether it is the `__init__` of a package."""
        return self.path.name == "__init__.py"


@dataclass(frozen=True, eq=False)
class Tree:
    """A checkout, or the extracted sources of a revision."""

    root: Path

    @cached_property
    def sources(self) -> list[Source]:
        """All Python files of the packages, in order, except generated ones."""
        paths = [path for package in PACKAGES for path in sorted((self.root / package).rglob("*.py"))]
        return [
            Source(PurePosixPath(path.relative_to(self.root).as_posix()), path.read_text(encoding="utf-8"))
            for path in paths
            if not path.name.endswith("_pb2.py")
        ]

    @cached_property
    def graph(self) -> Graph:
        """The modules that each module imports, wherever in its code."""
        return import_graph(self.root)

    @cached_property
    def graph_at_import(self) -> Graph:
        """The modules that each module imports while it is itself imported."""
        return import_graph(self.root, at_import=True)
