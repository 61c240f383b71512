"""What a dump has about its operators besides tensors: source lines, execution order, arguments, parents."""

from ingest.reader.context.frames import Frame, SourceLine
from ingest.reader.context.match import OperatorMatch
from ingest.reader.context.rank_context import Context, context_of
from ingest.reader.context.training_graph import TrainingGraph

__all__ = ["Context", "Frame", "OperatorMatch", "SourceLine", "TrainingGraph", "context_of"]
