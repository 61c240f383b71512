"""A bounded number of labels for any number of ranks."""

from ingest.metrics.ranks import OTHER, RankLabels


def test_ranks_beyond_the_limit_share_a_label() -> None:
    labels = RankLabels(limit=2)
    assert [labels.of(rank) for rank in (7, 3, 5, 7, 9)] == ["7", "3", OTHER, "7", OTHER]
    assert list(labels) == [7, 3, 5, 9]


def test_what_ranks_have_together_is_the_lowest_or_the_sum() -> None:
    labels = RankLabels(limit=1)
    values = {0: 5.0, 1: 4.0, 2: 3.0}
    assert labels.lowest(values) == {"0": 5.0, OTHER: 3.0}
    assert labels.total(values) == {"0": 5.0, OTHER: 7.0}


def test_each_label_is_announced_once() -> None:
    announced: list[str] = []
    labels = RankLabels(limit=2, on_new=[announced.append])
    for rank in (0, 1, 0, 2, 3, 2):
        labels.of(rank)
    assert announced == ["0", "1", OTHER]
