"""What a dump has about its operators besides tensors: source lines, execution order, arguments, parents.

rank_context.py             all of it for the tensors of one rank
files.py                    the files that have it: JSON with stacks and parents, how the dump was configured
ir.py, ge_graph.py          graphs of MindSpore, and which of their operators dumped ones are; graphs of GE
"""

from ingest.reader.context.files import Frame, SourceLine
from ingest.reader.context.ir import OperatorMatch
from ingest.reader.context.rank_context import Context, context_of

__all__ = ["Context", "Frame", "OperatorMatch", "SourceLine", "context_of"]
