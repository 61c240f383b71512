"""What was asked for and is missing, as values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ingest.reader.listing import TableList

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class MissingItem:
    """Something that the configuration of a dump asked for and that is not in the store."""

    what: str
    """`step`, `rank`, `operator`, `statistic`, `elements`, `statistics`, `inputs` or `outputs`."""
    name: str
    """Its name: as in the configuration, or as the graph has it; steps as ranges such as `4-7`."""
    rank: int | None
    """The rank that lacks it; None if it is not about one."""
    reason: str
    """Why it is missing, as far as that is known; "" if it is not."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


class MissingItems(TableList[MissingItem]):
    """What is missing: a list, which is also a table with the columns of `ls --missing --json`."""

    columns = ("what", "name", "rank", "reason")
    shown = columns
    noun = "missing item"

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield `MissingItem.to_dict` of each item."""
        return (item.to_dict() for item in self)

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each item; the rank is `Int64`, and `<NA>` for an item that is not about one."""
        return super().to_pandas().astype({"rank": "Int64"})
