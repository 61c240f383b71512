"""A number for each rank and step, and the greatest of them."""

import pytest

from ingest.page.asking import Arguments, Asked, Links
from ingest.page.moment import Moment
from ingest.page.views.matrix import SCREEN
from workers.errors import UsageError


def asked(moment: Moment, **given: str) -> Asked:
    return Asked(moment, Arguments.of(given, SCREEN.parameters), Links("", "run.zarr"))


@pytest.mark.parametrize("given", [{"ranks": "x"}, {"steps": "99"}, {"stat": "nonsense"}])
def test_what_is_not_there_is_refused(moment: Moment, given: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        SCREEN.show(asked(moment, **given))
