"""An answer about replicas may be limited to some tensors."""

import pytest

from ingest.questions.divergence import divergence
from tests.replicas import Replicas
from workers.errors import UsageError


def diverging() -> Replicas:
    made = Replicas()
    for step in range(3):
        for rank in range(3):
            odd = int(rank == 2 and step > 0)
            made.put(rank, step, {"Adam.w.input.0": step + odd, "Parameter.lr.output.0": 7 + step + odd})
    return made


def test_conditions_limit_the_differences() -> None:
    store = diverging().store
    both = {row.name for row in divergence(store).differences}
    assert both == {"Adam.w.input.0", "Parameter.lr.output.0"}
    for conditions in ({"name": "Adam.*"}, {"role": "weight"}, {"where": "slot == 0 and io == 'input'"}):
        answer = divergence(store, **conditions)  # type: ignore[arg-type]  # mypy knows no literal keys here
        assert {row.name for row in answer.differences} == {"Adam.w.input.0"}


def test_conditions_that_nothing_fulfils_are_refused() -> None:
    with pytest.raises(UsageError, match="no tensor fulfils --role 'loss'"):
        divergence(diverging().store, role="loss")
