"""Answers that are tables: short where they are printed, and with rows in a notebook and for pandas."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from ingest.reader import notebook
from ingest.reader.listing import cell_text
from ingest.reader.text import counted

if TYPE_CHECKING:
    import pandas as pd


class TableAnswer:
    """An answer about one store with a row for each of the things that it names."""

    __slots__ = ()

    store: str
    noun: ClassVar[str]
    shown: ClassVar[tuple[str, ...]] = ()
    """The columns that a notebook shows; all if there are none."""

    def rows_of_table(self) -> Sequence[dict[str, Any]]:
        """Return the rows as flat dictionaries of plain values."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.store}: {counted(len(self.rows_of_table()), self.noun)}>"

    def _repr_html_(self) -> str:
        rows = self.rows_of_table()
        columns = self.shown or tuple(rows[0] if rows else ())
        cells = ([cell_text(row[column]) for column in columns] for row in islice(rows, notebook.MAX_ROWS))
        title = f"{counted(len(rows), self.noun)}: {self.store}"
        return notebook.table(title, columns, cells, total=len(rows))

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each of the things that the answer names."""
        import pandas as pd  # deferred: takes 0.4 s to import

        rows = self.rows_of_table()
        return pd.DataFrame(rows, columns=list(rows[0] if rows else self.shown))
