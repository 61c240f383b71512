"""Scales of the recipes for float8."""

import pytest

from ingest.questions.precision import HISTORY, Scaling, checked_scaling
from workers.errors import UsageError


def test_delayed_scaling_forgets_after_its_history() -> None:
    scaling = Scaling("delayed", powers_of_two=False)
    assert scaling.advance(100.0) == 0
    assert {scaling.advance(1.0) for _ in range(HISTORY)} == {100.0}
    assert scaling.advance(1.0) == 1


def test_scalings_have_names() -> None:
    assert checked_scaling(" Current") == "current"
    with pytest.raises(UsageError, match="'often' is not a scaling"):
        checked_scaling("often")
