"""What the configuration of a dump asked for, and what is not in the store."""

from ingest.questions.missing.answer import MissingItem, MissingItems
from ingest.questions.missing.find import missing

__all__ = ["MissingItem", "MissingItems", "missing"]
