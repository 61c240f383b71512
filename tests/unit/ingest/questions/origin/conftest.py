"""Fixtures for tests of the origin: a run made by hand, and the question."""

from pathlib import Path
from typing import Any

import pytest

from ingest.questions.origin.answer import OriginAnswer
from tests.origin_runs import Ask, origin_of
from tests.stores import MadeDump, MadeRun


@pytest.fixture
def run(made: MadeDump) -> MadeRun:
    """A run without operators."""
    return MadeRun(made)


@pytest.fixture
def ask(made: MadeDump, store: Path) -> Ask:
    """Ingest the run, and ask for the origin."""

    def asked(**options: Any) -> OriginAnswer:
        return origin_of(made.root, store, **options)

    return asked
