"""Measure how much code there is, and in what shape, of several revisions side by side.

    python -m tests.house
    python -m tests.house --rev 49331ee3 --rev .

Prints a Markdown table with a column for each revision. Generated code is left out.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from radon.complexity import add_inner_blocks, cc_visit_ast
from radon.visitors import Function

ROOT = Path(__file__).parents[1]
WORKING_TREE = "."
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_IMPORTS = (ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Sources:
    """The Python files below some folders of a tree, by path."""

    trees: dict[Path, ast.Module]

    @classmethod
    def below(cls, root: Path, *folders: str) -> Sources:
        """Parse all files in these folders but generated ones."""
        paths = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
        own = (path for path in paths if not path.name.endswith("_pb2.py"))
        return cls({path.relative_to(root): ast.parse(path.read_text("utf-8")) for path in own})

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of every file."""
        return [node for tree in self.trees.values() for node in ast.walk(tree)]

    @property
    def statements(self) -> int:
        """The number of statements, as `ast` has them: docstrings count, blank lines and comments do not."""
        return sum(isinstance(node, ast.stmt) for node in self.nodes)

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """All functions and methods, with those inside others."""
        return [node for node in self.nodes if isinstance(node, _FUNCTIONS)]

    @property
    def classes(self) -> list[ast.ClassDef]:
        """All classes."""
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]

    @property
    def lines_of_imports(self) -> int:
        """The lines that import statements take."""
        return sum(
            (node.end_lineno or node.lineno) - node.lineno + 1
            for node in self.nodes
            if isinstance(node, _IMPORTS)
        )

    @property
    def functions_named_once(self) -> int:
        """The number of functions whose name is read at exactly one place, dunder methods left out."""
        read = Counter(node.id for node in self.nodes if isinstance(node, ast.Name))
        read.update(node.attr for node in self.nodes if isinstance(node, ast.Attribute))
        names = {function.name for function in self.functions if not function.name.startswith("__")}
        return sum(read[name] == 1 for name in names)

    @property
    def lengths(self) -> list[int]:
        """The lines of each function, sorted."""
        return sorted((node.end_lineno or node.lineno) - node.lineno + 1 for node in self.functions)

    def complexities(self) -> Iterator[tuple[int, str]]:
        """Yield the cyclomatic complexity of each function, as radon counts it, and its place."""
        for path, tree in self.trees.items():
            for block in add_inner_blocks(cc_visit_ast(tree)):
                if isinstance(block, Function):
                    yield block.complexity, f"{path}:{block.lineno} {block.fullname}"


def modules_imported_by(question: str, root: Path = ROOT) -> int:
    """Return how many modules of the project the command and the function of a question import."""
    code = (
        f"import sys, ingest.cli.app; ingest.cli.app.load_command('{question}'); ingest.{question}\n"
        "print(sum(name.partition('.')[0] in ('ingest', 'workers') for name in sys.modules))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=root, env={"PYTHONPATH": str(root)}, check=True, stdout=subprocess.PIPE
    )
    return int(done.stdout)


def figures(root: Path) -> dict[str, str]:
    """Return each figure of a tree by its name."""
    code, tests = Sources.below(root, "ingest", "workers"), Sources.below(root, "tests")
    lengths = code.lengths
    complexities = [complexity for complexity, _ in code.complexities()]
    return {
        "statements": f"{code.statements:,}",
        "modules": f"{len(code.trees):,}",
        "functions": f"{len(code.functions):,}",
        "classes": f"{len(code.classes):,}",
        "functions whose name is used exactly once": f"{code.functions_named_once:,}",
        "lines of imports": f"{code.lines_of_imports:,}",
        "statements in tests": f"{tests.statements:,}",
        "length of a function: median, 95th percentile": (
            f"{statistics.median(lengths):.0f}, {lengths[len(lengths) * 95 // 100]}"
        ),
        "functions of complexity over 10, %": (
            f"{100 * sum(each > 10 for each in complexities) / len(complexities):.1f}"
        ),
        "modules that `divergence` imports": str(modules_imported_by("divergence", root)),
    }


def table(columns: dict[str, dict[str, str]]) -> str:
    """Return the figures of several revisions as a table."""
    names = list(next(iter(columns.values())))
    rows = [["", *columns], ["---", *["---:"] * len(columns)]]
    rows += [[name, *(column[name] for column in columns.values())] for name in names]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


@contextmanager
def sources_of(revision: str) -> Iterator[Path]:
    """Yield the root of the sources at a revision, which are removed at the end of the `with` block.

    Raises:
        subprocess.CalledProcessError: git cannot read the revision.
    """
    if revision == WORKING_TREE:
        yield ROOT
        return
    with tempfile.TemporaryDirectory(prefix="house-") as directory:
        command = ["git", "archive", "--format=tar", "--end-of-options", revision]
        archive = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "-x", "-C", directory], input=archive, check=True)
        yield Path(directory)


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.house", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--rev", action="append", metavar="REV", help=f"a revision, or {WORKING_TREE!r}: the working tree"
    )
    columns = {}
    for revision in parser.parse_args(words).rev or [WORKING_TREE]:
        with sources_of(revision) as root:
            columns[revision] = figures(root)
    print(table(columns))


if __name__ == "__main__":
    main()
