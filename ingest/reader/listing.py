"""Lists that a notebook shows as tables: of tensors, and of anything else that has rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Self, SupportsIndex, TypeVar, overload

from ingest.reader import notebook
from ingest.reader.tensor import TENSOR_FIELDS, Tensor
from ingest.reader.text import cell_text, counted
from workers.arrays.statistics import FIELDS

if TYPE_CHECKING:
    import pandas as pd

_Item = TypeVar("_Item")
#: Items that are written out where a list is printed.
_PRINTED = 20


class TableList(list[_Item]):
    """A list that is also a table, and is short where it is printed."""

    columns: ClassVar[tuple[str, ...]]
    """The columns of the table of pandas: the keys of a row."""
    shown: ClassVar[tuple[str, ...]]
    """Those of them that a notebook shows."""
    noun: ClassVar[str]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each item as a flat dictionary of plain values."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: SupportsIndex) -> _Item: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: SupportsIndex | slice) -> _Item | Self:
        if isinstance(index, slice):
            return type(self)(super().__getitem__(index))
        return super().__getitem__(index)

    def __repr__(self) -> str:
        lines = [repr(item) for item in self[:_PRINTED]]
        if len(self) > _PRINTED:
            lines.append(f"... {len(self) - _PRINTED} more")
        return "[" + ",\n ".join(lines) + "]"

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each item. Whole numbers that may be unknown are `Int64`: `<NA>` is unknown."""
        import pandas as pd  # deferred: takes 0.4 s to import

        frame = pd.DataFrame(list(self.rows()), columns=list(self.columns))
        counts = [name for name in frame if name in ("step", "count") or str(name).endswith("_count")]
        return frame.astype(dict.fromkeys(counts, "Int64"))

    def _repr_html_(self) -> str:
        cells = ([cell_text(row[column]) for column in self.shown] for row in self.rows())
        return notebook.table(counted(len(self), self.noun), self.shown, cells, total=len(self))


class Tensors(TableList[Tensor]):
    """The tensors that a search returned: a list, which is also a table with the columns of `find --json`."""

    columns = (*TENSOR_FIELDS, *FIELDS)
    shown = ("rank", "step", "name", "dtype", "shape", "nan_count", "min", "max", "mean")
    noun = "tensor"

    def __init__(self, tensors: Iterable[Tensor] = (), undecided: Iterable[Tensor] = ()) -> None:
        """Make a list of tensors; `undecided` are others that may fulfil the condition of the search."""
        super().__init__(tensors)
        self.undecided: tuple[Tensor, ...] = tuple(undecided)
        """Those of which sketches tell too little: the condition holds for one bound, not for the other."""

    @property
    def exactness(self) -> str:
        """`exact`; or `bounded`: these certainly fulfil the condition, and none but `undecided` may, too."""
        return "bounded" if self.undecided else "exact"

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield `Tensor.to_dict` of each tensor."""
        return (tensor.to_dict() for tensor in self)
