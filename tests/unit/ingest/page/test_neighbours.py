"""Which steps and ranks are next to the one that is looked at."""

from ingest.page.neighbours import around


def test_numbers_around_one_are_the_nearest_on_either_side() -> None:
    assert around(5, [9, 1, 3, 5, 7]) == (3, 7)
    assert around(4, [1, 3, 7]) == (3, 7)
    assert around(1, [1, 3]) == (None, 3)
    assert around(1, []) == (None, None)
