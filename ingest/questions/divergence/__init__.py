"""Where replicas stop to agree."""

from ingest.questions.divergence.find import divergence
from ingest.questions.divergence.groups import parse_groups
from ingest.questions.divergence.result import Difference, Divergence, Group, Missing, Odd

__all__ = ["Difference", "Divergence", "Group", "Missing", "Odd", "divergence", "parse_groups"]
