"""Count names and phrases that make code hard to read."""

from __future__ import annotations

import ast
import keyword
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from io import StringIO

from tests.structure.tree import Source, Tree

_NEGATED = re.compile(r"\b(?:is|are)\s+no\s")
_THERE_NEGATED = re.compile(r"\bthere\s+(?:is|are)\s+no\s", re.IGNORECASE)


@cache
def identifiers(tree: Tree) -> Counter[str]:
    """Count the names in both packages: tokens of type NAME that are not Python keywords.

    Variables, attributes, arguments, functions, classes and modules count each time they are written. Names
    inside f-strings count only from Python 3.12 on, which splits f-strings into tokens.
    """
    return Counter(
        token.string
        for source in tree.sources
        for token in _tokens(source)
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string)
    )


def identifiers_in_all(tree: Tree) -> int:
    """Count the occurrences of all names in both packages."""
    return identifiers(tree).total()


def identifiers_named(tree: Tree, name: str) -> int:
    """Count the occurrences of one name in both packages."""
    return identifiers(tree)[name]


def negated(tree: Tree) -> int:
    """Count "is no" and "are no" before another word, as in "X is no Y", in the text inside code.

    The text of docstrings, comments and string literals of both packages counts. A docstring may break the
    line inside the phrase.
    """
    return sum(len(_NEGATED.findall(text)) for source in tree.sources for text in _texts(source))


def negated_there(tree: Tree) -> int:
    """Count those of these phrases that follow "there", as in "there is no Y", which is ordinary English."""
    return sum(len(_THERE_NEGATED.findall(text)) for source in tree.sources for text in _texts(source))


def negated_in_pages(tree: Tree) -> int:
    """Count "is no" and "are no" in README, CHANGELOG, CONTRIBUTING and the pages directly in `docs`."""
    pages = [tree.root / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    pages += (tree.root / "docs").glob("*.md")
    return sum(len(_NEGATED.findall(page.read_text(encoding="utf-8"))) for page in pages if page.is_file())


def _texts(source: Source) -> Iterator[str]:
    """Yield all strings, including docstrings, and all comments."""
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
    if _NEGATED.search(source.text):  # a comment stands in one piece; tokens take a second for all sources
        for token in _tokens(source):
            if token.type == tokenize.COMMENT:
                yield token.string


def _tokens(source: Source) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(StringIO(source.text).readline)
