"""Steps in a row."""

import itertools
import re

import pytest

from ingest.page.drawing.timeline import timeline_picture


def boxes(drawn: str) -> list[str]:
    return re.findall(r'<rect[^>]* class="(\w+)"', drawn)


def test_affected_steps_are_marked() -> None:
    assert boxes(timeline_picture([1, 2, 5], {2, 99}, "steps")) == ["zero", "mark", "zero"]
    assert boxes(timeline_picture([], {2}, "steps")) == []


def test_one_affected_step_among_thousands_is_seen() -> None:
    drawn = timeline_picture(range(10_000), {7_777}, "steps")
    assert len(boxes(drawn)) == 180
    assert boxes(drawn).count("mark") == 1


@pytest.mark.parametrize("count", [1, 10, 100, 1000])
def test_numbers_of_steps_do_not_overlap(count: int) -> None:
    drawn = timeline_picture(range(count), frozenset(), "steps")
    places = [float(x) for x in re.findall(r'<text x="([\d.]+)"', drawn)]
    assert places
    assert places[0] >= 14
    assert all(after - before >= 37 for before, after in itertools.pairwise(places))


def test_the_script_is_told_where_boxes_are() -> None:
    drawn = timeline_picture(range(10_000), frozenset(), "steps")
    left, wide, columns = (
        float(re.findall(rf'data-{name}="([\d.]+)"', drawn)[0]) for name in ("left", "cell-width", "columns")
    )
    assert float(re.findall(r'<svg[^>]* width="([\d.]+)"', drawn)[0]) == left + wide * columns
