"""What a dump tells of its operators beside tensors: source lines, execution order, arguments, parents."""

from ingest.reader.context.frames import Frame
from ingest.reader.context.graphs import TrainingGraph
from ingest.reader.context.match import OperatorMatch
from ingest.reader.context.of_store import Context, SourceLine, context_of

__all__ = ["Context", "Frame", "OperatorMatch", "SourceLine", "TrainingGraph", "context_of"]
