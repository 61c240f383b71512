"""What the names and tables in a dump tell about its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from workers.arrays.statistics import UNKNOWN, Statistics
from workers.model import Positional


class TensorName(NamedTuple):
    """Facts about a tensor in the name and the path of its dump file; -1 and "" for missing facts.

    A tuple, because a step has thousands, and a frozen dataclass takes four times as long to make.
    """

    net: str = ""
    graph: str = ""
    op_type: str = ""
    op_name: str = ""
    io: str = ""
    slot: int = -1
    occurrence: int = 0
    """Number of this dump among all dumps of the same op and slot in one step (loops), in order of time."""
    task: int = -1
    stream: int = -1
    timestamp: int = -1
    """Microseconds since the epoch, by the writer's clock."""
    format: str = ""
    declared_dtype: str = ""
    """The type before the writer converted the tensor, as the dump spells it."""
    full_name: str = ""
    """The name of the operator as the framework spells it, if the dump has it."""
    sequence: int = -1
    """Its place in the list that the dump itself keeps, if no time is known."""


@dataclass(frozen=True, slots=True)
class ReportedStatistics(Positional):
    """Statistics of one tensor as the dump system wrote them down."""

    source: str
    name: TensorName
    dtype: str
    """As the file spells it."""
    shape: tuple[int, ...]
    statistics: Statistics = UNKNOWN
    """NaN in each field that the file does not give, or gives by a different definition."""
    tensor: str = ""
    """Path of the file that holds the tensor, if the report names it; otherwise `name` identifies it."""
    checksum: str = ""
    """As the file gives it, preceded by its kind: `md5:...`, `crc32:...`."""
    digits: int = 6
    """How many significant decimal digits its numbers have."""
    decimals: int = -1
    """Number of decimal places of all values, large and small; -1 if `digits` alone describes them."""
    counts_are_least: bool = False
    """Whether a count of NaN or Inf other than 0 only means that there are some."""
    std_is_of_sample: bool = False
    """Whether its standard deviation has n - 1 in the place of n."""
    attributes: str = ""
    """What else is known of the tensor, as the text of a JSON object; "" for nothing."""
    histogram: bytes = b""
    """Its histogram, (bin, 3) of int64: see `workers.arrays.histogram.FIELDS`. Empty if the file has none."""
