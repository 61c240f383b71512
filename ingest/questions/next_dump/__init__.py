"""What to dump next: the configuration of a small dump that answers what the one in the store cannot."""

from ingest.questions.next_dump.answer import DumpEstimate, NextDump
from ingest.questions.next_dump.cost import DumpCost, dump_cost
from ingest.questions.next_dump.find import PURPOSES, next_dump

__all__ = ["PURPOSES", "DumpCost", "DumpEstimate", "NextDump", "dump_cost", "next_dump"]
