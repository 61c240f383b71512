"""The operators of one rank and step."""

from pathlib import Path

import pytest

from bench.steps import commit_tables, make_tables
from ingest.page.asking import Arguments, Asked, Links
from ingest.page.moment import Moment
from ingest.page.views.cell import SCREEN
from ingest.reader.dump_store import open_store
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.opening import open_objects, resolve


def asked(moment: Moment, **given: str) -> Asked:
    query = {"rank": "1", "step": "2", **given}
    return Asked(moment, Arguments.of(query, SCREEN.parameters), Links("", "run.zarr"))


def test_the_next_step_is_that_of_the_rank_if_others_number_theirs_differently(store: Path) -> None:
    objects = open_objects(resolve(str(store)))
    for key in (StepKey(0, 0), StepKey(1, 5), StepKey(0, 10)):
        commit_tables(objects, key, make_tables(key, ["op0"]))
    moment = Moment.of(open_store(store))
    ((words, url),) = SCREEN.show(asked(moment, rank="0", step="0"))["neighbours"].items()
    assert (words, "step=10" in url) == ("next step", True)


@pytest.mark.parametrize("given", [{"rank": "9"}, {"step": "9"}, {"stat": "nonsense"}])
def test_what_is_not_there_is_refused(moment: Moment, given: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        SCREEN.show(asked(moment, **given))
