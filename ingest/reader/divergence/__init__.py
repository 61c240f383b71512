"""Where replicas stop to agree."""

from ingest.reader.divergence.find import divergence
from ingest.reader.divergence.groups import parse_groups
from ingest.reader.divergence.result import Difference, Divergence, Group, Missing, Odd

__all__ = ["Difference", "Divergence", "Group", "Missing", "Odd", "divergence", "parse_groups"]
