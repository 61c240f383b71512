"""What `dump-ingest heatmap --cells` prints."""

from __future__ import annotations

from typing import Any

from ingest.cli.printing import print_json, print_table
from ingest.questions.matrix import STATES, Matrix, matrix, parse_cells
from ingest.reader.catalog import Catalog
from ingest.reader.text import number_text


def print_cells(
    store: Catalog, pattern: str | None, stat: str | None, cells: str, *, as_json: bool, **chosen: Any
) -> None:
    """Print the cells of a matrix.

    Args:
        store: the store.
        pattern: a glob for the names of tensors; all if None.
        stat: a count of commits or a statistic; None for the elements that are NaN or infinite.
        cells: the most rows and columns, such as `88x240`.
        as_json: whether as JSON.
        chosen: ranks and steps; see `matrix`.

    Raises:
        UsageError: `cells` is not a size, `stat` is unknown, or no tensor matches.
        DamagedStore: no step can be read.
    """
    most = parse_cells(cells)  # a wrong size is reported before anything is read
    binned = matrix(store, stat or "non_finite", pattern, cells=most, **chosen)
    if as_json:
        print_json(binned.to_dict())
        return
    print_table(
        ("ranks", "steps", binned.title, "state", "missing", "NaN or Inf"),
        list(_rows(binned)),
        right=(binned.title, "missing"),
    )


def _rows(binned: Matrix) -> list[tuple[str, ...]]:
    return [
        (
            _ends(ranks),
            _ends(steps),
            number_text(float(binned.values[row, column])),
            STATES[int(binned.state[row, column])],
            str(binned.gaps[row, column]),
            "yes" if binned.bad[row, column] else "",
        )
        for row, ranks in enumerate(binned.ranks)
        for column, steps in enumerate(binned.steps)
    ]


def _ends(ends: tuple[int, int]) -> str:
    first, last = ends
    return f"{first}" if first == last else f"{first}-{last}"
