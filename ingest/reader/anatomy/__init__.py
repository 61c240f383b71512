"""What is in one tensor: where NaN and infinities lie, percentiles, a histogram; read piece by piece."""

from ingest.reader.anatomy.answer import Anatomy, AxisCounts, NonFinite
from ingest.reader.anatomy.examine import examine
from ingest.reader.anatomy.index import parse_index

__all__ = ["Anatomy", "AxisCounts", "NonFinite", "examine", "parse_index"]
