"""What ranks hold and should not, on demand."""

import pytest

import ingest
from ingest.page.asking import Arguments, Asked, Links
from ingest.page.moment import Moment
from ingest.page.views.incidents import SCREEN
from ingest.reader.dump_store import open_store
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT, Config, simulate, write


@pytest.fixture(scope="module")
def moment(tmp_path_factory: pytest.TempPathFactory) -> Moment:
    """A run of two replicas, of which a gradient is not reduced."""
    root = tmp_path_factory.mktemp("mistake")
    write(root / "dump", simulate(Config(1, 2, frozenset({"BUG a gradient is not reduced"}), 1)))
    ingest_directly(root / "dump", root / "run.zarr", layout=LAYOUT)
    return Moment.of(open_store(root / "run.zarr"))


def asked(moment: Moment, **given: str) -> Asked:
    return Asked(moment, Arguments.of(given, SCREEN.parameters), Links("", "run.zarr"))


def test_nothing_is_read_until_somebody_asks(moment: Moment) -> None:
    shown = SCREEN.show(asked(moment))
    check = shown["check"]
    assert (check.answer, check.url) == (None, "/runs/run.zarr/incidents?step=0&layout=1")
    assert "layout" not in shown["lines"].shell
    assert not SCREEN.is_slow(Arguments({}))
    assert SCREEN.is_slow(Arguments({"layout": "1"}))


def test_a_mistake_that_no_rule_looks_for_is_a_card_with_its_tensor_on_each_rank(moment: Moment) -> None:
    shown = SCREEN.show(asked(moment, layout="1", step="0"))
    check = shown["check"]
    assert check.answer.findings == ingest.layout(moment.store, 0).findings
    (card,) = check.cards
    assert card["finding"].kind == "missing reduction"
    assert [rank for rank, _ in card["links"]] == list(card["finding"].ranks)
    assert all("/tensor?" in url for _, url in card["links"])
    assert "layout" in shown["lines"].shell
    assert shown["lines"].python.endswith("ingest.layout(store, 0, include_partial=True)")
