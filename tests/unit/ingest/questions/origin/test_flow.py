"""What is bad is followed along edges and crossings, upstream and downstream."""

from ingest.questions.origin.calls import Call, CallOperand, RankTrace
from ingest.questions.origin.flow import Crossing, Edge, Flow
from ingest.reader.flow.content import CallKey


def operand(row: int, content: str, io: str = "output") -> CallOperand:
    return CallOperand(row, io, 0, (2,), (content,), "NaN")


def call(name: str, row: int, rank: int = 0, *, reads: str = "", writes: str = "") -> Call:
    op_type, op_name = name.split(".")
    inputs = (operand(row, reads, "input"),) if reads else ()
    outputs = (operand(row, writes),) if writes else ()
    return Call(rank, 0, CallKey("net", "0", op_type, op_name, 0), row, len(inputs), (), inputs, outputs)


def flow_of(*calls: Call) -> Flow:
    by_rank: dict[int, list[Call]] = {}
    for member in calls:
        by_rank.setdefault(member.rank, []).append(member)
    return Flow(0, {rank: RankTrace(rank, 0, tuple(members)) for rank, members in by_rank.items()})


LOG = call("Log.a", 0, writes="x")
NEG = call("Neg.b", 2, reads="x", writes="y")
SYNC = call("AllReduce.s", 4, reads="y", writes="z")
OTHER_SYNC = call("AllReduce.s", 1, rank=1, writes="z")
ADD = call("Add.c", 3, rank=1, reads="z", writes="w")


def chain() -> Flow:
    """Log, Neg and AllReduce on rank 0; from there AllReduce and Add on rank 1."""
    flow = flow_of(LOG, NEG, SYNC, OTHER_SYNC, ADD)
    flow.add_edge(Edge(LOG, NEG, NEG.bad_inputs[0]))
    flow.add_edge(Edge(NEG, SYNC, SYNC.bad_inputs[0]))
    flow.add_crossing(Crossing(SYNC.key, (SYNC,), (SYNC, OTHER_SYNC)))
    flow.add_edge(Edge(OTHER_SYNC, ADD, ADD.bad_inputs[0]))
    return flow


def test_sources_are_edges_and_crossings() -> None:
    flow = chain()
    assert [flow.has_source(member) for member in (LOG, NEG, OTHER_SYNC)] == [False, True, True]
    assert list(flow.calls) == [LOG, NEG, SYNC, OTHER_SYNC, ADD]


def test_own_writes_are_not_bad_inputs() -> None:
    flow = chain()
    assert flow.has_bad_input(SYNC)
    flow.own_writes[SYNC].append(SYNC.bad_inputs[0])
    assert not flow.has_bad_input(SYNC)
    assert not flow.has_bad_input(OTHER_SYNC)
