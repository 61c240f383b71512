"""Answers name roots in words."""

from pathlib import Path

import pytest

from ingest import open_store
from ingest.questions.origin.calls import bad_numbers
from ingest.questions.origin.link import link_calls
from ingest.questions.origin.roots import Root, roots_of
from ingest.questions.origin.suspects import Suspects
from ingest.questions.origin.wording import (
    describe_root,
    how_it_began,
    list_in_words,
    name_of_input,
    sentence,
)
from ingest.reader.snapshot import take_snapshot
from tests.made_runs import MadeRun
from tests.npy_files import MadeDump
from tests.origin_runs import BAD, CLEAN, WORSE
from tests.pipeline import ingest_directly


@pytest.fixture
def roots(run: MadeRun, made: MadeDump, store: Path) -> list[Root]:
    """A birth on rank 0; on rank 1 a parameter that came in."""
    run.op("Log.a", [CLEAN], [BAD])
    run.op("Cast.b", [WORSE], [BAD], rank=1)
    run.parameter("w", WORSE, rank=1)
    ingest_directly(made.root, store)
    snapshot = take_snapshot(open_store(store))
    suspects = Suspects(snapshot, bad_numbers, "auto")
    return roots_of(link_calls(0, suspects.trace(0, suspects.ranks(0))))


def test_birth_is_told_with_its_operator(roots: list[Root]) -> None:
    born, _ = roots
    assert describe_root(born) == "NaN born in Log (a)"
    assert how_it_began(born) == "was born in it"
    assert name_of_input(born) is None


def test_bad_input_is_told_with_its_parameter(roots: list[Root]) -> None:
    _, came_in = roots
    assert describe_root(came_in) == "NaN came in with input 0, which is w, of Cast (b)"
    assert how_it_began(came_in) == "came in with input 0"
    assert name_of_input(came_in) == "Cast.b.input.0 (Parameter w)"


def test_sentences_begin_and_end() -> None:
    assert sentence("an input was not dumped") == "An input was not dumped."
    assert sentence("It is known.") == "It is known."
    assert sentence("layers.0.rescale is a module") == "layers.0.rescale is a module."


@pytest.mark.parametrize(
    ("count", "text"), [(0, ""), (2, "0, 1"), (5, "0, 1, 2, 3, 4"), (7, "0, 1, 2, 3, 4 and 2 more")]
)
def test_long_lists_are_cut(count: int, text: str) -> None:
    assert list_in_words(map(str, range(count))) == text
