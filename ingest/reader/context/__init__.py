"""What a dump has about its operators besides tensors: source lines, execution order, arguments, parents.

rank_context.py             all of it for the tensors of one rank
files.py                    the files that have it; those with the configuration of the dump
configuration.py
stacks.py, ir.py, pb.py,    their formats: JSON with stacks and parents, graphs of MindSpore, graphs of GE
ge_graph.py
match.py                    which operator of a graph a dumped one is
"""

from ingest.reader.context.ge_graph import TrainingGraph
from ingest.reader.context.match import OperatorMatch
from ingest.reader.context.rank_context import Context, context_of
from ingest.reader.context.stacks import Frame, SourceLine

__all__ = ["Context", "Frame", "OperatorMatch", "SourceLine", "TrainingGraph", "context_of"]
