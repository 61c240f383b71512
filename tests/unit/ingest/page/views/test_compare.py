"""Two runs side by side."""

import shutil
from pathlib import Path

import pytest

from ingest.page.arguments import Arguments
from ingest.page.library import Library
from ingest.page.links import Links
from ingest.page.screen import Asked
from ingest.page.views import compare
from ingest.page.views.compare import SCREEN
from workers.errors import UsageError


@pytest.fixture(scope="module")
def library(nan_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Library:
    """A run, the same again, and one that has only its first step."""
    root = tmp_path_factory.mktemp("runs")
    for name in ("a.zarr", "b.zarr", "short.zarr"):
        shutil.copytree(nan_log, root / name)
    for step in root.glob("short.zarr/rank_*/step_[23]"):
        shutil.rmtree(step)
    return Library(str(root), refresh_s=60)


def asked(library: Library, **given: str) -> Asked:
    moment = library.run("a.zarr").moment()
    return Asked(moment, Arguments.of(given, SCREEN.parameters), Links("", "a.zarr"), library)


def test_without_another_run_there_is_a_choice(library: Library) -> None:
    shown = SCREEN.show(asked(library))
    assert (shown["names"], shown["answer"], shown["lines"]) == (["b.zarr", "short.zarr"], None, None)


def test_the_last_step_in_common_is_compared(library: Library) -> None:
    equal = SCREEN.show(asked(library, **{"with": "b.zarr"}))
    assert (equal["step"], equal["common"], equal["rows"], equal["first"]) == (3, [1, 2, 3], [], None)
    short = SCREEN.show(asked(library, **{"with": "short.zarr"}))
    assert (short["step"], short["common"]) == (1, [1])


def test_what_is_not_there_is_refused(library: Library) -> None:
    with pytest.raises(UsageError):
        SCREEN.show(asked(library, **{"with": "nothing.zarr"}))
    with pytest.raises(UsageError, match="is not a statistic"):
        SCREEN.show(asked(library, **{"with": "b.zarr", "stat": "nonsense"}))


def test_all_ranks_and_all_steps_take_time(library: Library) -> None:
    assert not SCREEN.is_slow(asked(library).arguments)
    assert SCREEN.is_slow(asked(library, all="1").arguments)
    assert SCREEN.is_slow(asked(library, over="1").arguments)
    assert SCREEN.is_slow(asked(library, elements="1").arguments)


def test_what_takes_long_is_left_out_and_linked(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_CELLS_AT_ONCE", "_NBYTES_AT_ONCE"):
        monkeypatch.setattr(compare, limit, 10)
    quick = SCREEN.show(asked(library, **{"with": "b.zarr"}))
    assert (quick["growth"], quick["overlays"]) == (None, [])
    assert "over=1" in quick["over_url"]
    assert "elements=1" in quick["elements_url"]
    assert "--no-elements" in quick["lines"].shell
    whole = SCREEN.show(asked(library, **{"with": "b.zarr", "over": "1", "elements": "1"}))
    assert whole["growth"] is not None
    assert (whole["over_url"], whole["elements_url"]) == ("", "")
    assert "--no-elements" not in whole["lines"].shell
