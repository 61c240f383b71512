"""Fixtures for tests of layouts."""

from collections.abc import Callable

import pytest

from ingest.questions.placement.layout_answer import RunLayout
from tests.sharded_net import Config, Dump, Lay, layout_of, simulate


@pytest.fixture(scope="module")
def lay(tmp_path_factory: pytest.TempPathFactory) -> Lay:
    """Ask for the layout of a net over tensor- and data-parallel ranks, with a planted mistake."""

    def run(tp: int, dp: int, *flags: str, changed: Callable[[list[Dump]], None] | None = None) -> RunLayout:
        (ranks,) = simulate(Config(tp, dp, frozenset(flags), 1))
        if changed is not None:
            changed(ranks)
        return layout_of(tmp_path_factory.mktemp("layout"), [ranks])

    return run
