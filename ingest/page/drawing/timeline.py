"""Steps in a row: which of them an incident touches."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from markupsafe import Markup

from ingest.page.drawing.svg import picture, tag, text

_WIDTH, _HEIGHT, _TOP = 1080.0, 40.0, 2.0
_MAX_BOXES = 180
#: What the number below the first box takes to the left of its middle.
_HALF_NUMBER = 14.0


def timeline_picture(steps: Sequence[int], affected: AbstractSet[int], label: str) -> Markup:
    """Return a box for each step, or for several together; affected ones are marked.

    The script makes boxes narrower in a narrow window, as it does with the cells of a matrix.
    """
    count = max(min(len(steps), _MAX_BOXES), 1)
    width = min(_WIDTH / count, 46.0)
    gap = 2.0 if width > 8 else 0.5
    left = max(_HALF_NUMBER - (width - gap) / 2, 0.0)
    boxes, numbers = [], []
    every = max(-(-count // max(int(count * width // 38), 1)), 1)
    for box in range(count if steps else 0):
        within = steps[box * len(steps) // count : (box + 1) * len(steps) // count]
        css = "mark" if any(step in affected for step in within) else "zero"
        x = left + box * width
        boxes.append(tag("rect", x=x, y=_TOP, width=width - gap, height=18, rx=min(3, width / 4), class_=css))
        if box % every == 0:
            numbers.append(text(x + (width - gap) / 2, _TOP + 32, str(within[0]), class_="tick mid"))
    return picture(
        max(left + count * width, 60.0),
        _HEIGHT,
        [tag("g", *boxes, class_="cells"), *numbers],
        label,
        class_="plot matrix",
        data_left=left,
        data_cell_width=width,
        data_columns=count,
    )
