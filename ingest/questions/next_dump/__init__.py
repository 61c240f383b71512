"""What to dump next: the configuration of a small dump that answers what the one in the store cannot."""

from ingest.questions.next_dump.estimate import DumpCost, dump_cost
from ingest.questions.next_dump.find import PURPOSES, DumpEstimate, NextDump, next_dump

__all__ = ["PURPOSES", "DumpCost", "DumpEstimate", "NextDump", "dump_cost", "next_dump"]
