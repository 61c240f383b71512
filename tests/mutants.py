"""Break central modules on purpose, one expression at a time, and count which breaks the tests notice.

    python -m tests.mutants
    python -m tests.mutants --only '*/commit.py' --count 40 --seed 1

A seed breaks the same expressions as long as the modules stay the same. A mutant is killed if a test of its
module fails or does not end. Those that survive are printed: no test sees that change, or it changes nothing.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 60
#: The modules, each with the tests that describe what it does.
MODULES = {
    "workers/arrays/statistics.py": "workers/arrays/test_statistics.py workers/arrays/compiled",
    "workers/arrays/comparison.py": "workers/arrays/test_comparison.py workers/arrays/compiled",
    "workers/store/packed/shards.py": "workers/store/packed/test_shards.py",
    "workers/store/commit.py": "workers/store/test_commit.py",
    "workers/dump/formats/pt.py": "workers/dump/formats/test_pt.py",
    "workers/dump/formats/dump_data.py": "workers/dump/formats/test_dump_data.py",
    "ingest/steps/decide.py": "ingest/steps",
    "ingest/consolidating/cube_writer.py": "ingest/consolidating",
    "ingest/store_gc/plan.py": "ingest/store_gc",
    "ingest/questions/compare/judge.py": "ingest/questions/compare/test_judge.py",
    "ingest/questions/origin/roots.py": "ingest/questions/origin",
    "ingest/questions/divergence/agreement.py": "ingest/questions/divergence",
    "ingest/identities/operators.py": "test_identities.py",
}
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip


class _BrokenLoader(SourceFileLoader):
    """Loads a module from a changed tree."""

    tree: ast.Module

    def get_code(self, _: str) -> CodeType:
        return compile(self.tree, self.path, "exec")


class _Broken(MetaPathFinder):
    """Finds one module as a changed tree."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        # With the path of the source: next to it, compiled kernels keep their cache.
        name = module.removesuffix(".py").replace("/", ".")
        self._loader = _BrokenLoader(name, str(ROOT / module))
        self._loader.tree = tree

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        return spec_from_loader(fullname, self._loader) if fullname == self._loader.name else None


def breaks(tree: ast.Module) -> Iterator[tuple[int, Callable[[], None]]]:
    """Yield each line that can be broken, and how."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(ops=[operator]):
                yield node.lineno, partial(setattr, node, "ops", [_SWAPS[type(operator)]()])
            case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in _SWAPS:
                yield node.lineno, partial(setattr, node, "op", _SWAPS[type(operator)]())
            case ast.If(test=test) | ast.IfExp(test=test):
                yield node.lineno, partial(setattr, node, "test", ast.UnaryOp(ast.Not(), test))
            case ast.comprehension(ifs=[test]):
                yield test.lineno, partial(setattr, node, "ifs", [])
            case ast.Constant(value=bool(value)):
                yield node.lineno, partial(setattr, node, "value", not value)
            case ast.Constant(value=int(value)):
                yield node.lineno, partial(setattr, node, "value", value + 1)
            case ast.Return(value=ast.expr()) | ast.Expr(value=ast.Call()):
                yield node.lineno, partial(setattr, node, "value", ast.Constant(None))


def survives(module: str, tree: ast.Module, tests: str) -> bool:
    """Run the tests of a broken module in a fork of this process, until one fails."""
    if child := os.fork():
        end = time.monotonic() + TIMEOUT_S
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return False
            time.sleep(0.05)
        return ended[1] == 0
    os.setpgid(0, 0)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    # Before pytest's own hook, which takes all modules of a project that has a plugin, and is off for that.
    sys.meta_path.insert(0, _Broken(module, tree))
    import pytest

    paths = [f"tests/unit/{name}" for name in tests.split()]
    os._exit(int(pytest.main(["-xq", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist", *paths])))


def main(words: Sequence[str] | None = None) -> None:
    """Break, test, count."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--only", default="*", metavar="PATTERN", help="modules whose path matches")
    parser.add_argument("--count", type=int, default=15, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    import numba  # noqa: F401

    for module, tests in MODULES.items():
        if not fnmatch.fnmatch(module, options.only):
            continue
        source = (ROOT / module).read_text("utf-8")
        sites = range(sum(1 for _ in breaks(ast.parse(source))))
        chosen = random.Random(f"{options.seed} {module}").sample(sites, min(options.count, len(sites)))
        start, alive = time.monotonic(), []
        if not survives(module, ast.parse(source), tests):
            print(f"{module}: its tests fail without a mutant")
            continue
        for number in sorted(chosen):
            tree = ast.parse(source)
            line, apply = list(breaks(tree))[number]
            before = ast.unparse(tree).splitlines()
            apply()
            ast.fix_missing_locations(tree)
            changed = [
                new for old, new in zip(before, ast.unparse(tree).splitlines(), strict=False) if old != new
            ]
            if survives(module, tree, tests):
                alive.append(f"  {line}: {changed[0].strip() if changed else ''}")
        killed, took = len(chosen) - len(alive), time.monotonic() - start
        print(f"{module}: {killed} of {len(chosen)} killed in {took:.0f} s", *alive, sep="\n", flush=True)


if __name__ == "__main__":
    main()
