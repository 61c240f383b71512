"""The tokens of recorded calls: which row of which call is which token of which sequence of both sides.

In a causal model, a row depends on the tokens before it and on its own. So a row is known by its prefix: the
ids that the embedding has read up to it. Padding, packing, chunks of a prompt, decoding with a cache, and
batches of another size or order all follow from recorded values: ids, positions, masks, and lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, product, takewhile
from typing import NamedTuple, TypeAlias

import numpy as np

from ingest.identities.definition import Array
from ingest.questions.compare.sources import StepTensors
from ingest.questions.rollout.fibres import Arrived, FibreStretch, HeldParameter, Program
from ingest.reader.operator_kinds import is_input, is_output
from ingest.reader.text import Plain
from workers.model import MIB, grouped
from workers.tasks.operands import elements_of

#: Bytes of streams of a rank that are kept in memory.
_KEPT_NBYTES = 256 * MIB
#: Parameters of a rank that are kept in memory: those of modules that are looked at several times in turn.
_KEPT_WEIGHTS = 4

#: The name of the module that is recorded: what it calls its own parts may have the name that it has itself.
WHOLE = "the whole model"


class Stream(NamedTuple):
    """A tensor of a module over all calls."""

    op_type: str
    module: str
    io: str
    slot: int
    turn: int = 0
    """Counts the calls of the module within one call of the model."""

    @property
    def name(self) -> str:
        """How people read it."""
        return f"{self.module}.{self.io}.{self.slot}" + f" (call {self.turn})" * bool(self.turn)


@dataclass(frozen=True, slots=True)
class TensorPlace(Plain):
    """A tensor of a side, as `dump-ingest show` finds it."""

    rank: int
    step: int
    name: str
    graph: str


class Prefixes:
    """All prefixes of token ids, each with a number: 0 is the empty one."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, int], int] = {}
        self.token = [-1]

    def find(self, prefix: int, tokens: Iterable[int]) -> Iterator[int]:
        """Yield the prefixes that follow one by these tokens, as far as they are known."""
        for token in tokens:
            if (following := self._next.get((prefix, token))) is None:
                return
            yield (prefix := following)

    def extended(self, prefix: int, tokens: Iterable[int]) -> Iterator[int]:
        """Yield the prefixes that follow one by these tokens."""
        for token in tokens:
            number = self._next.setdefault((prefix, token), len(self.token))
            if number == len(self.token):
                self.token.append(token)
            yield (prefix := number)


@dataclass(slots=True, eq=False)
class TokenSequence:
    """One sequence as a rank has computed it."""

    number: int
    prefixes: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """Rows, counted over all calls of the rank."""


class TokenRun(NamedTuple):
    """Rows of one call that are tokens of one sequence, one after the other."""

    rows: Array
    past: int | None
    """How many tokens came before; None if nothing recorded tells."""
    is_doubtful: bool = False
    """Whether the first rows may be padding."""


class ModelCall:
    """One call of the model."""

    def __init__(self, tensors: StepTensors, numbers: Sequence[int], embedded: int) -> None:
        """Name the tensors of the call: `embedded` is that of the ids."""
        self.tensors = tensors
        self.streams: dict[Stream, int] = {}
        turns: dict[Stream, int] = {}
        for number in numbers:
            key = tensors.keys[number]
            plain = Stream(key.op_type, key.op_name, key.io, key.slot)
            self.streams[plain._replace(turn=turns.setdefault(plain, 0))] = number
            turns[plain] += 1
        self.embedded = embedded
        self.lead = tensors.shapes[embedded]
        self.length = self.lead[-1] if self.lead else 1
        """Rows of the batch that belong together: those of a sequence, or of several that are packed."""
        self.ids = self.read(embedded).reshape(-1)
        self.ends = np.zeros(0, np.int64)
        """The last rows of its segments."""
        self._found: dict[tuple[int, ...], tuple[Array, int] | None] = {}

    def read(self, number: int) -> Array:
        """Return the elements of one of its tensors."""
        operand = self.tensors.operand(number)
        return elements_of([operand], in_order=True)[0].read(0, operand.size).reshape(operand.shape)

    def rows(self, number: int) -> Array | None:
        """Return by token the row of a tensor, -1 for those it lacks; None if it has no rows of tokens."""
        found = self._rows_of(number)
        return None if found is None else found[0]

    def _rows_of(self, number: int) -> tuple[Array, int] | None:
        """Return the same, and how many rows there are."""
        lead = self.tensors.shapes[number][:2]
        if lead not in self._found:
            self._found[lead] = self._rows_by_token(lead)
        return self._found[lead] or self._last_rows(number)

    def _rows_by_token(self, lead: tuple[int, ...]) -> tuple[Array, int] | None:
        count, length = len(self.ids), self.length
        batch, all_rows = count // max(length, 1), np.arange(count)
        match lead:
            case (first, *_) if first == count or lead == (batch, length):
                return all_rows, count
            case (first, second) if (first, second) == (length, batch):
                return all_rows.reshape(length, batch).T.reshape(-1), count
            case (1, second) if second == length:
                return np.tile(np.arange(length), batch), length
        return None

    def _last_rows(self, number: int) -> tuple[Array, int] | None:
        """Return by token the row of a tensor that has only the last one of each sequence."""
        shape = self.tensors.shapes[number]
        is_one = len(self.lead) == 1 or shape[1:2] == (1,)
        if shape[:1] != (len(self.ends),) or not is_one or number <= self._last_whole:
            return None
        rows = np.full(len(self.ids), -1)
        rows[self.ends] = np.arange(len(self.ends))
        return rows, len(self.ends)

    @cached_property
    def _last_whole(self) -> int:
        """The last tensor with as many rows as there are tokens: only behind it, rows are the last ones."""
        return max(
            number
            for number in self.streams.values()
            if math.prod(self.tensors.shapes[number][: len(self.lead)]) == len(self.ids)
        )

    def width(self, number: int) -> int:
        """Return how many elements a row has."""
        found = self._rows_of(number)
        return 0 if found is None else math.prod(self.tensors.shapes[number]) // max(found[1], 1)

    def rows_of_width(self, number: int, width: int) -> Array | None:
        """Return `rows` of a tensor with elements that has rows of this width; else None."""
        is_so = width and self.tensors.dumped[number] and self.width(number) == width
        return self.rows(number) if is_so else None

    def whole_numbers(self) -> Iterator[tuple[Stream, int]]:
        """Yield its tensors of whole numbers besides the ids."""
        for stream, number in self.streams.items():
            is_whole = self.tensors.dtypes[number].startswith(("int", "uint", "bool"))
            if is_whole and number != self.embedded and self.tensors.dumped[number]:
                yield stream, number

    def segments(self, positions: Stream | None) -> Iterator[TokenRun]:
        """Yield its rows by sequence."""
        count, length, mask = len(self.ids), self.length, self._mask()
        places = None if positions is None else self._positions(self.streams.get(positions, -1))
        cuts = {*range(0, count, max(length, 1))} | self._cuts()
        for begin, end in zip(bounds := sorted(cuts), [*bounds[1:], count], strict=True):
            rows, past = np.arange(begin, end), None
            if mask is not None:
                seen = mask[begin // length]
                rows, past = rows[seen[-length:][rows % length]], int(seen[:-length].sum())
            if len(rows):
                yield from self._runs(rows, past, places)

    def _runs(self, rows: Array, past: int | None, places: Array | None) -> Iterator[TokenRun]:
        """Yield rows of one sequence, or of several whose positions begin again."""
        steps = np.ones(len(rows) - 1) if places is None else np.diff(places[rows])
        for part in np.split(rows, np.flatnonzero(steps != 1) + 1):
            own = past
            if places is not None and (past is None or part[0] != rows[0]):
                own = int(places[part[0]])
            repeated = int(np.argmax(self.ids[part] != self.ids[part[0]]))
            yield TokenRun(part, own, past is None and not own and repeated > 1)

    def _mask(self) -> Array | None:
        """Return which tokens count, (sequence, token), and not padding, those before this call included."""
        for stream, number in self.whole_numbers():
            shape = self.tensors.shapes[number]
            is_early = number < self.embedded or "mask" in stream.io
            has_batch = len(self.lead) == len(shape) == 2 and shape[0] == self.lead[0]
            if is_early and has_batch and shape[1] >= self.length:
                values = self.read(number)
                if ((values == 0) | (values == 1)).all() and values.any():
                    return values.astype(bool)
        return None

    def _positions(self, number: int) -> Array | None:
        rows = self.rows(number) if number >= 0 else None
        return None if rows is None else self.read(number).reshape(-1)[rows].astype(np.int64)

    def _cuts(self) -> set[int]:
        """Return where sequences begin, by a list of cumulated lengths."""
        count = len(self.ids)
        for _, number in self.whole_numbers():
            shape = self.tensors.shapes[number]
            if len(shape) == 1 and 2 <= shape[0] <= count + 1:
                values = self.read(number).astype(np.int64)
                if values[0] == 0 and values[-1] == count and (np.diff(values) >= 0).all():
                    return set(values[values < count].tolist())
        return set()

    def is_counting(self, number: int) -> bool | None:
        """Return whether a tensor may hold positions; None if the call is too short to tell."""
        values = self._positions(number) if self.width(number) == 1 else None
        if values is None or (values < 0).any():
            return False
        steps = np.diff(values)
        return None if not len(steps) or (values > 0).all() else bool(np.mean(steps == 1) >= 0.5)


class Lane:
    """What one rank recorded in steps with the same parameters."""

    def __init__(self, program: Program, rank: int, steps: Sequence[int]) -> None:
        """List the calls; reads ids."""
        self.rank = rank
        self.parameters: dict[str, HeldParameter] = {}
        keys = (key for key in program.source.keys if key.rank == rank and key.step in steps)
        self.calls = [call for key in keys for call in _calls_of(program.load(key))]
        self.sequences: list[TokenSequence] = []
        self.unassigned = 0
        """Rows of which it is open to which sequence they belong."""
        self._tables: dict[Stream, tuple[Array, Array]] = {}
        self._kept_nbytes = 0
        self._widths: dict[Stream, int] = {}
        self._weights: dict[str, Array] = {}
        self._begins = np.cumsum([0, *(len(call.ids) for call in self.calls)])
        self._segments = [[*call.segments(self.positions)] for call in self.calls]
        for call, segments in zip(self.calls, self._segments, strict=True):
            call.ends = np.array([each.rows[-1] for each in segments], np.int64)

    def weight(self, name: str) -> Array | None:
        """Return the elements of a parameter, of which some are kept; None if there is none of that name."""
        if name not in self._weights and name in self.parameters:
            if len(self._weights) >= _KEPT_WEIGHTS:
                self._weights.pop(next(iter(self._weights)))
            self._weights[name] = self.parameters[name].read()
        return self._weights.get(name)

    @cached_property
    def positions(self) -> Stream | None:
        """The tensor that holds positions: in no call anything else, and counting in one."""
        found = grouped(
            (stream, call.is_counting(number))
            for call in self.calls
            for stream, number in call.whole_numbers()
        )
        likely = [
            stream
            for stream, told in found.items()
            if False not in told and (True in told or "pos" in f"{stream.io}.{stream.module}".lower())
        ]
        return min(likely, key=lambda stream: (-len(found[stream]), "pos" not in stream.io), default=None)

    @cached_property
    def streams(self) -> list[Stream]:
        """All tensors with rows of tokens, in order of execution."""
        longest = sorted(self.calls, key=lambda call: -len(call.streams))[:1]
        named = dict.fromkeys(stream for call in (*longest, *self.calls) for stream in call.streams)
        return [each for each in named if self.width(each)]

    @cached_property
    def inputs(self) -> Mapping[tuple[str, str, int], list[Stream]]:
        """What calls read, by type, name and turn of the module."""
        return grouped(
            ((each.op_type, each.module, each.turn), each) for each in self.streams if is_input(each.io)
        )

    @cached_property
    def stacked(self) -> Mapping[str, list[str]]:
        """The parameters that hold matrices of several experts, by module."""
        names = (name for name, each in self.parameters.items() if len(each.shape) == 3)
        return grouped((name.rpartition(".")[0], name) for name in names)

    @cached_property
    def outputs(self) -> dict[str, Stream]:
        """The first output of floating-point numbers of each module, and others of another width by name."""
        found: dict[str, Stream] = {}
        whole = next(iter(self.calls[0].streams))
        for each in self.streams:
            if is_output(each.io) and not each.turn and "float" in self.dtype(each):
                name = WHOLE if each[:2] == whole[:2] else each.module
                first = found.setdefault(name, each)
                if name != WHOLE and each.slot and self.width(each) != self.width(first):
                    found[each.name] = each
        return found

    def results(self, module: str) -> list[Stream]:
        """Return everything that a module returns."""
        output = self.outputs[module]
        same = [each for each in self.calls[0].streams if each[:2] == output[:2] and not each.turn]
        return [each for each in same if is_output(each.io)]

    def width(self, stream: Stream) -> int:
        """Return how many elements a row of a stream has."""
        if stream not in self._widths:
            first = next((call for call in self.calls if stream in call.streams), None)
            number = -1 if first is None else first.streams[stream]
            is_there = first is not None and first.tensors.dumped[number]
            self._widths[stream] = first.width(number) if first is not None and is_there else 0
        return self._widths[stream]

    def dtype(self, stream: Stream) -> str:
        """Return the type of a stream."""
        return next(
            call.tensors.dtypes[call.streams[stream]] for call in self.calls if stream in call.streams
        )

    @property
    def doubts(self) -> int:
        """How many segments need the other side to be told apart."""
        return sum(each.past != 0 or each.is_doubtful for segments in self._segments for each in segments)

    @property
    def tokens(self) -> int:
        """How many rows of tokens it has, without padding."""
        return sum(len(each.rows) for segments in self._segments for each in segments)

    @property
    def embedding(self) -> str:
        """The module that reads the ids."""
        call = self.calls[0]
        return call.tensors.keys[call.embedded].op_name

    def token_ids(self) -> list[list[int]]:
        """Return the ids of each sequence, as far as it was computed here."""
        ids = np.concatenate([call.ids for call in self.calls])
        return [ids[each.places].tolist() for each in self.sequences]

    def calls_of(self, places: Array) -> list[ModelCall]:
        """Return the calls in which rows were computed."""
        return [self.calls[each] for each in np.unique(np.searchsorted(self._begins, places, "right") - 1)]

    def tensor_at(self, stream: Stream, place: int) -> TensorPlace:
        """Return the tensor in which a stream has the row of a place."""
        call = self.calls[int(np.searchsorted(self._begins, place, "right")) - 1]
        number, tensors = call.streams[stream], call.tensors
        return TensorPlace(
            self.rank, tensors.key.step or 0, tensors.names[number], tensors.keys[number].graph
        )

    def batch_of(self, places: Array) -> Array | None:
        """Return the rows of a batch that belong together, if these rows are among them; None if not."""
        number = int(np.searchsorted(self._begins, places[0], "right")) - 1
        length = self.calls[number].length
        first = self._begins[number] + (places[0] - self._begins[number]) // length * length
        return (
            np.arange(first, first + length)
            if places[-1] < first + length and (places >= first).all()
            else None
        )

    def assign(self, prefixes: Prefixes, known: int) -> None:
        """Find the sequence of each segment.

        Args:
            prefixes: takes those of this rank.
            known: how many of them are those of the other side; 0 if it was not looked at yet.
        """
        for number, (call, segments) in enumerate(zip(self.calls, self._segments, strict=True)):
            continued: set[int] = set()
            for segment in segments:
                done, latest = 0, None
                while done < len(segment.rows):
                    past = None if segment.past is None else segment.past + done
                    rest = TokenRun(segment.rows[done:], past, segment.is_doubtful and not done)
                    ids = call.ids[rest.rows].tolist()
                    taken = self._taken(ids, rest, prefixes, known, continued) or (latest, 0, len(ids))
                    latest, skipped, count = taken
                    done += skipped + count
                    if latest is None:
                        self.unassigned += count
                        continue
                    own = rest.rows[skipped : skipped + count]
                    last = latest.prefixes[-1] if latest.prefixes else 0
                    latest.prefixes += prefixes.extended(last, call.ids[own].tolist())
                    latest.places += (self._begins[number] + own).tolist()
                    continued.add(latest.number)

    def _taken(
        self, ids: list[int], segment: TokenRun, prefixes: Prefixes, known: int, continued: set[int]
    ) -> tuple[TokenSequence, int, int] | None:
        """Return the sequence to which a segment belongs, and its first and number of tokens."""

        def reach(prefix: int, begin: int = 0) -> int:
            return sum(each < known for each in prefixes.find(prefix, ids[begin:]))

        past = segment.past
        if past == 0 or (past is None and (reach(0) or not self.sequences)):
            repeats = next((n for n, each in enumerate(ids) if each != ids[0]), len(ids) - 1)
            firsts = range(repeats + 1 if segment.is_doubtful else 1)
            begin = max(firsts, key=lambda first: reach(0, first))
            return self._begun([], []), begin, len(ids) - begin
        is_next = any(
            len(each.prefixes) == past and reach(each.prefixes[-1])
            for each in self.sequences
            if each.number not in continued
        )
        if len(ids) > 1 and reach(0) == len(ids) and not is_next:  # positions that do not begin at 0
            return self._begun([], []), 0, len(ids)
        return self._continued(past, reach, len(ids), continued)

    def _continued(
        self, past: int | None, reach: Callable[[int], int], count: int, continued: set[int]
    ) -> tuple[TokenSequence, int, int] | None:
        """Return the one sequence that goes on with tokens, which no other row of the call does."""
        ends = {
            each.prefixes[-1]: each
            for each in self.sequences[::-1]
            if each.number not in continued and past in (None, len(each.prefixes))
        }
        best = max(map(reach, ends), default=0)
        fitting = [each for prefix, each in ends.items() if reach(prefix) == best]
        if len(fitting) == 1:
            return fitting[0], 0, best or count
        if past is None or best:
            return None
        # Positions may be wrong: what the tokens of the other side continue is the sequence, if it is one.
        ends = {each.prefixes[-1]: each for each in self.sequences[::-1] if each.number not in continued}
        fitting = [each for prefix, each in ends.items() if reach(prefix) == count]
        return (fitting[0], 0, count) if len(fitting) == 1 else self._reused(past, reach, count)

    def _reused(
        self, past: int, reach: Callable[[int], int], count: int
    ) -> tuple[TokenSequence, int, int] | None:
        """Begin a sequence with the cached prefix of another one."""
        own = {each.prefixes[past - 1]: each for each in self.sequences if len(each.prefixes) > past}
        fitting = [prefix for prefix in own if reach(prefix)] or [*own]
        if len(fitting) != 1:
            return None
        other = own[fitting[0]]
        return self._begun(other.prefixes[:past], other.places[:past]), 0, count

    def _begun(self, prefixes: list[int], places: list[int]) -> TokenSequence:
        self.sequences.append(TokenSequence(len(self.sequences), prefixes, places))
        return self.sequences[-1]

    def has(self, stream: Stream, places: Array) -> Array:
        """Return by place whether a stream has its row."""
        return np.asarray(self._table(stream)[1][places] >= 0)

    def values(self, stream: Stream, places: Array) -> Array | None:
        """Return the rows of a stream, (token, element); None if it lacks one."""
        rows, where = self._table(stream)
        wanted = where[places]
        if not len(wanted) or (wanted < 0).any():
            return None
        is_stretch = wanted[-1] - wanted[0] == len(wanted) - 1 and (np.diff(wanted) == 1).all()
        return rows[wanted[0] : wanted[-1] + 1] if is_stretch else rows[wanted]

    def _table(self, stream: Stream) -> tuple[Array, Array]:
        """Return the rows of a stream of all calls, and by place which of them is its own: -1 if none is."""
        if (table := self._tables.pop(stream, None)) is None:
            table = self._read(stream)
            self._kept_nbytes += table[0].nbytes
        self._tables[stream] = table  # behind all others
        while len(self._tables) > 1 and self._kept_nbytes > _KEPT_NBYTES:
            self._kept_nbytes -= self._tables.pop(next(iter(self._tables)))[0].nbytes
        return table

    def _read(self, stream: Stream) -> tuple[Array, Array]:
        width, where = self.width(stream), np.full(self._begins[-1], -1)
        operands, total = [], 0
        for call, begin in zip(self.calls, self._begins.tolist(), strict=False):
            number = call.streams.get(stream, -1)
            rows = call.rows_of_width(number, width) if number >= 0 else None
            if rows is not None:
                operands.append(call.tensors.operand(number))
                where[begin : begin + len(rows)] = np.where(rows < 0, -1, rows + total)
                total += operands[-1].size // width
        read = zip(elements_of(operands, in_order=True), operands, strict=True)
        parts = [elements.read(0, operand.size).reshape(-1, width) for elements, operand in read]
        parts = parts or [np.zeros((0, width))]
        return np.concatenate(parts, dtype=parts[0].dtype, casting="unsafe"), where


def _calls_of(tensors: StepTensors) -> list[ModelCall]:
    """Return the calls in a step: each begins with what is passed to the model before it embeds the ids."""
    keys = tensors.keys
    forward = [
        number
        for number, key in enumerate(keys)
        if (key.graph, key.op_type[:7]) == ("", "Module.") and not key.io.startswith("parameters")
    ]
    reads = [one for one, following in pairwise(forward) if _is_embedding(tensors, one, following)]
    embedded = [number for number in reads if keys[number].op_name == keys[reads[0]].op_name]
    begins = [_begin(tensors, forward, forward.index(number)) for number in embedded]
    parts = zip(pairwise([*begins, len(forward)]), embedded, strict=True)
    return [ModelCall(tensors, forward[begin:end], number) for (begin, end), number in parts]


def _begin(tensors: StepTensors, forward: Sequence[int], place: int) -> int:
    before = takewhile(lambda number: is_input(tensors.keys[number].io), reversed(forward[:place]))
    return place - sum(1 for _ in before)


def _is_embedding(tensors: StepTensors, number: int, following: int) -> bool:
    read, written = tensors.keys[number], tensors.keys[following]
    is_one = read.op_name == written.op_name and is_input(read.io) and is_output(written.io)
    is_whole = tensors.dtypes[number] in ("int64", "int32") and bool(tensors.dumped[number])
    is_vector = tensors.shapes[following][:-1] == tensors.shapes[number]
    return is_one and is_whole and is_vector and "float" in tensors.dtypes[following]


Lanes: TypeAlias = Mapping[int, Lane]


@dataclass(frozen=True, slots=True, eq=False)
class SequencePair:
    """One sequence as both sides computed it."""

    ranks: tuple[int, int]
    sequences: tuple[TokenSequence, TokenSequence]
    length: int
    """How many tokens they have in common from the beginning."""

    @property
    def key(self) -> tuple[int, int]:
        """The rank of the rollout, and the number of the sequence there."""
        return self.ranks[1], self.sequences[1].number

    def places(self, side: int) -> Array:
        """Return where a side computed the common tokens."""
        return np.array(self.sequences[side].places[: self.length])

    def common(self, side: int) -> TokenSequence:
        """Return the common tokens as a side computed them."""
        own = self.sequences[side]
        return TokenSequence(own.number, own.prefixes[: self.length], own.places[: self.length])


@dataclass(frozen=True, slots=True)
class ModuleLink:
    """Columns of what a module of the trainer and one of the rollout write."""

    modules: tuple[str, str]
    ranks: tuple[int, int]
    firsts: tuple[int, int] = (0, 0)
    length: int = 0
    """How many columns; 0: all."""

    def columns(self, values: Array, side: int) -> Array:
        """Return its columns of the rows of a side."""
        return values[:, self.firsts[side] :][:, : self.length] if self.length else values


def sequence_pairs(a: Lanes, b: Lanes) -> Iterator[SequencePair]:
    """Yield for each sequence of the rollout, and each rank of both, the trainer's that has most of it."""
    for b_rank, lane in b.items():
        for sequence in lane.sequences:
            for a_rank, other in a.items():
                best = max(other.sequences, key=lambda each: _common(each, sequence), default=None)
                if best is not None and (length := _common(best, sequence)):
                    yield SequencePair((a_rank, b_rank), (best, sequence), length)


def _common(one: TokenSequence, other: TokenSequence) -> int:
    pairs = zip(one.prefixes, other.prefixes, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def module_links(a: Lanes, b: Lanes, arrived: tuple[Arrived, ...]) -> list[ModuleLink]:
    """Return which modules belong together: by their weights, and else by their names."""
    links: dict[ModuleLink, None] = {}
    for each in arrived:
        module, _, kind = each.name.rpartition(".")
        has_output = each.rank in b and module in b[each.rank].outputs
        for stretch in each.stretches if has_output and (kind == "weight" or len(each.shape) == 3) else ():
            links |= dict.fromkeys(_of_stretch(a, b[each.rank], each, stretch))
    known = [*links]
    for one, other in product(a.values(), b.values()):
        links |= dict.fromkeys(_of_names(one, other, known))
        links |= dict.fromkeys(_of_results(one, other, [*links]))
    return [*links]


def _of_results(a: Lane, b: Lane, links: Sequence[ModuleLink]) -> Iterator[ModuleLink]:
    """Yield the results besides the first of modules that belong together."""
    for link in links:
        for name, stream in a.outputs.items():
            other = link.modules[1] + name.removeprefix(link.modules[0])
            is_other = stream.slot and stream.module == link.modules[0] and other in b.outputs
            if is_other and link.firsts == (0, 0) and link.ranks == (a.rank, b.rank):
                yield ModuleLink((name, other), link.ranks)


def _of_names(a: Lane, b: Lane, links: Sequence[ModuleLink]) -> Iterator[ModuleLink]:
    """Yield modules that are left and have the same name or the same parts, and write as much."""
    known = {link.modules[1] for link in links if link.ranks[1] == b.rank}
    names = [name for name in b.outputs if name not in known and f"{name}.weight" in b.parameters]
    for name, module in [*zip(names, names, strict=True), *_of_contents(a, b, links)]:
        same = a.outputs.get(name)
        if same is not None and a.width(same) == b.width(b.outputs[module]):
            yield ModuleLink((name, module), (a.rank, b.rank))


def _of_contents(a: Lane, b: Lane, links: Sequence[ModuleLink]) -> Iterator[tuple[str, str]]:
    """Yield modules without weights of their own that return one thing, and whose parts belong together."""
    by_side: list[dict[frozenset[str], list[str]]] = [{}, {}]
    for side, lane in enumerate((a, b)):
        for name in (each for each in lane.outputs if len(lane.results(each)) == 1):
            inside = frozenset(
                link.modules[0]
                for link in links
                if name == WHOLE or link.modules[side].startswith(f"{name}.")
            )
            if inside:
                by_side[side].setdefault(inside, []).append(name)
    for inside, names in by_side[0].items():
        others = sorted(by_side[1].get(inside, []), key=_outermost)
        yield from zip(sorted(names, key=_outermost), others, strict=False)


def _outermost(name: str) -> tuple[bool, int]:
    return name != WHOLE, len(name)


def _of_stretch(a: Lanes, lane: Lane, arrived: Arrived, stretch: FibreStretch) -> Iterator[ModuleLink]:
    module = arrived.name.rpartition(".")[0]
    name, _, kind = stretch.of.rpartition(".")
    name = name.rpartition(".")[0] if stretch.plus else name
    for rank, other in a.items():
        held = other.parameters.get(stretch.of)
        if held is None or not (kind == "weight" or len(held.shape) == 3) or name not in other.outputs:
            continue
        modules, ranks = (name, module), (rank, lane.rank)
        axes = _output_axis(other, name, held.shape), _output_axis(lane, module, arrived.shape)
        is_here = rank == stretch.of_rank or stretch.of_rank not in a
        if stretch.plus:
            yield ModuleLink(modules, ranks)
        elif len(arrived.shape) == 2 and (stretch.of_axis, stretch.axis) == axes:
            # A shard of another rank is that of other columns.
            if is_here:
                yield ModuleLink(modules, ranks, (stretch.first, stretch.begin), stretch.length)
        elif other.width(other.outputs[name]) == lane.width(lane.outputs[module]):
            yield ModuleLink(modules, ranks)


def _output_axis(lane: Lane, module: str, shape: tuple[int, ...]) -> int:
    return 0 if shape and shape[0] == lane.width(lane.outputs[module]) else 1
