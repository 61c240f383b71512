"""A URL names one tensor."""

import pytest

from ingest.page.arguments import Arguments
from ingest.page.choice import tensor_of
from ingest.page.moment import Moment
from workers.errors import UsageError


def asked(**given: str) -> Arguments:
    return Arguments({"rank": "1", "step": "2", **given})


def test_a_tensor_is_found_by_its_whole_name_and_graph(moment: Moment) -> None:
    expected = moment.opened(1, 2).tensors()[-1]
    assert tensor_of(moment, asked(name=expected.name)).name == expected.name
    assert tensor_of(moment, asked(name=expected.name, graph=expected.graph)).graph == expected.graph


@pytest.mark.parametrize(
    ("change", "similar"), [({"graph": "no such"}, True), ({}, True), ({"name": "?"}, False)]
)
def test_others_are_refused_with_similar_names(
    moment: Moment, change: dict[str, str], *, similar: bool
) -> None:
    name = moment.opened(1, 2).tensors()[0].name
    with pytest.raises(UsageError, match=r"rank 1 step 2 has no tensor") as error:
        tensor_of(moment, asked(**{"name": name if "graph" in change else name[1:], **change}))
    assert (name in (error.value.hint or "")) is similar


def test_a_step_that_is_not_there_is_refused(moment: Moment) -> None:
    with pytest.raises(UsageError):
        tensor_of(moment, asked(step="99", name="x"))
