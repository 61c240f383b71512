"""What `dump-ingest heatmap --values-only` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingest.cli.printing import print_json, print_table
from ingest.questions.heatmap_rows import value_rows
from ingest.questions.rank_values import rank_values
from ingest.reader.catalog import Catalog
from ingest.reader.text import number_text
from workers.errors import UsageError


def refuse_beside(option: str, given: Mapping[str, object]) -> None:
    """Refuse what an option cannot do.

    Args:
        option: `--values-only` or `--cells`.
        given: by option, what was given for it; None or empty for nothing.

    Raises:
        UsageError: one of the options is given.
    """
    if names := [name for name, value in given.items() if value]:
        raise UsageError(f"{option} does not go with {', '.join(names)}", hint=f"Leave out {option}.")


def print_values(
    store: Catalog, pattern: str | None, statistic: str, *, as_json: bool, **chosen: Any
) -> None:
    """Print rank, step and value of a statistic.

    Args:
        store: the store.
        pattern: a glob for the names of tensors; all if None.
        statistic: its name.
        as_json: whether as JSON.
        chosen: ranks and steps; see `rank_values`.

    Raises:
        UsageError: no tensor matches.
        DamagedStore: no step can be read.
    """
    rows = value_rows(rank_values(store, pattern, statistic, **chosen), statistic)
    if as_json:
        print_json(rows)
        return
    print_table(
        ("rank", "step", statistic),
        [(str(row["rank"]), str(row["step"]), number_text(row["value"])) for row in rows],
        right=("rank", "step", statistic),
    )
