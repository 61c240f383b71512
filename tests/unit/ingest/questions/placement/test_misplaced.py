"""What looks like a mistake in how ranks hold a tensor."""

from tests.laid_out import Lay
from tests.sharded_net import Dump


def test_the_rank_that_differs_from_most_is_named(lay: Lay) -> None:
    def spoil(ranks: list[Dump]) -> None:
        ranks[2]["param.layers.1.norm1.weight"] = ranks[2]["param.layers.1.norm1.weight"] + 1

    (found,) = lay(1, 4, changed=spoil).findings
    assert (found.kind, found.ranks) == ("missing reduction", (2,))
    assert found.text.startswith("bytes of rank 2 differ from those of ranks 0-1, 3, and all hold the same")


def test_a_shard_that_a_rank_lacks_is_not_a_wrong_shard(lay: Lay) -> None:
    def lose(ranks: list[Dump]) -> None:
        del ranks[3]["param.layers.1.fc1.weight"]

    assert lay(4, 1, changed=lose).findings == ()


def test_layers_in_which_a_rank_is_off_are_no_shards(lay: Lay) -> None:
    """Layers 0 and 1 are exchanged on a rank: layer 2, which all ranks hold alike, is right."""

    def exchange(ranks: list[Dump]) -> None:
        one, other = (f"param.layers.{layer}.fc1.weight" for layer in (0, 1))
        ranks[2][one], ranks[2][other] = ranks[2][other], ranks[2][one]

    assert lay(1, 4, changed=exchange).findings == ()


def test_layers_that_one_rank_holds_are_no_example_for_others(lay: Lay) -> None:
    """As where one rank dumps a tensor of some layers: that tells nothing about a layer of two ranks."""

    def lose(ranks: list[Dump]) -> None:
        for layer in (0, 2):
            del ranks[1][f"layers.{layer}.context"]

    assert lay(1, 2, changed=lose).findings == ()


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
