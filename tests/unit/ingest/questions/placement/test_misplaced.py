"""What looks like a mistake in how ranks hold a tensor."""

import pytest

from ingest.questions.placement.misplaced import EqualHolders
from tests.laid_out import Lay
from tests.sharded_net import Dump


@pytest.mark.parametrize(
    ("groups", "is_replicated", "is_distinct", "pattern"),
    [
        (((0, 1, 2),), True, False, (0, 0, 0)),
        (((0,), (1,), (2,)), False, True, (0, 1, 2)),
        (((0, 2), (1, 3)), False, False, (0, 1, 0, 1)),
        (((0,),), False, False, (0,)),  # a single rank tells nothing
    ],
)
def test_ranks_hold_the_same_or_a_part_each(
    groups: tuple[tuple[int, ...], ...], pattern: tuple[int, ...], *, is_replicated: bool, is_distinct: bool
) -> None:
    held = EqualHolders(groups)
    assert (held.is_replicated, held.is_distinct, held.pattern) == (is_replicated, is_distinct, pattern)


def test_a_rank_with_the_shard_of_another_is_found(lay: Lay) -> None:
    def repeat(ranks: list[Dump]) -> None:
        ranks[1]["param.layers.1.fc1.weight"] = ranks[0]["param.layers.1.fc1.weight"]

    (found,) = lay(2, 1, changed=repeat).findings
    assert (found.kind, found.ranks) == ("wrong shard", (0, 1))
    assert "hold the same bytes" in found.text
    assert found.to_dict()["step"] == 0


def test_constants_are_equal_by_chance(lay: Lay) -> None:
    """Biases of zero are the same on every rank, and no shard is wrong for it."""

    def vanish(ranks: list[Dump]) -> None:
        for dump in ranks:
            dump["param.layers.1.fc1.weight"] = dump["param.layers.1.fc1.weight"] * 0

    assert lay(2, 1, changed=vanish).findings == ()
