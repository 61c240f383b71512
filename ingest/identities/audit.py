"""Go through the calls of a step, and hold every tensor against what it follows from."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple, Self

import numpy as np

from ingest.identities.check import IdentityCheck, check, failing, of_guess
from ingest.identities.containers import RESIDUAL, last_of_chain, parts_of, results, sums_of
from ingest.identities.definition import Array, CallOperands, Expectation, wide
from ingest.identities.difference import shape_of_difference, shares_part
from ingest.identities.gradients import GRADIENT, OF_ACTIVATION, ActivationGradients, added, scaled, share_of
from ingest.identities.limits import UNWRITTEN, unit_roundoff
from ingest.identities.operands import PARAMETERS, ShardCut, StepOperands
from ingest.identities.operators import DEFINITIONS, PARTS, expectations, plain_name
from ingest.identities.optimizer import ParameterHistory, recorded_update
from ingest.identities.updates import ParameterUpdate, judged, of_unshared
from ingest.reader.operator_kinds import (
    RECOMPUTED,
    CallKey,
    holders,
    is_awaited,
    is_collective,
    is_container,
    is_input,
    is_optimizer,
    is_parameter,
    writes_in_place,
)
from ingest.reader.step import Step
from ingest.reader.step_flow import BY_GRAPH, FlowCall, FlowOperand
from ingest.reader.tensor import Tensor

#: What proves a tensor that equals the one it was made from.
COPY = "copy"
#: Gradients are held against those of all ranks if there are at most so many: each rank reads the others.
_RANKS = 16
#: Elements of parameters whose history is kept: 176 bytes for each.
_KEPT = 1 << 24
_OPEN = IdentityCheck("open")
_HOLDS = IdentityCheck("holds")
#: What the data tell of gradients and parameters that may be a mistake of the whole step.
ADDED, NOT_REDUCED = "added to that of the step before", "of this rank alone"
#: Of what a module gave: replicas computed with the new parameters, and this rank did not.
STALE = "computed with the parameters of the step before"
#: How many other modules are looked at to see whether parameters moved between calls.
_TRIED = 16
#: Roundoff of the narrowest type in which activations are kept.
_NARROWEST = 2.0**-2
#: What proves that of a module which calls those in it one after another.
SEQUENTIAL = "sequential"
#: How many limits one element is off that neither moved parameters explain, nor what is rounded in between.
_FAR = 64.0
_UNWRITTEN = "read NaN, or memory that was not written yet"
#: Parts of which such sums are looked for.
_PARTS = 6
REDUCED = ("mean over ranks", "sum over ranks")


class CheckedTensor(NamedTuple):
    """One tensor of a step."""

    row: int
    kind: str
    """What proves it, or why it is not covered."""
    outcome: IdentityCheck
    is_replica: bool = True
    """Of a parameter: whether all ranks hold the same."""


@dataclass(slots=True)
class RankHistory:
    """What is kept of one rank from step to step."""

    step: int | None = None
    parameters: dict[str, ParameterHistory] = field(default_factory=dict)
    gradients: dict[str, Array] = field(default_factory=dict)
    """Those of parameters that ranks share are summed over the ranks, if they were dumped before that."""
    unshared: set[str] = field(default_factory=set)
    """Parameters of which ranks that share them have had other gradients: what was read is a guess."""
    zero: frozenset[str] = frozenset()
    """Gradients that were dumped again after they were zero: which one was read is not known."""
    before: StepAudit | None = None
    elsewhere: float = 0.0
    """The sum of the squares of the gradients of shards that other ranks hold."""

    def norm(self) -> float:
        """Return the norm of all gradients."""
        own = sum(np.sum(wide(each) ** 2) for each in self.gradients.values())
        return float(np.sqrt(own + self.elsewhere))

    def begin(self, step: int | None) -> None:
        """Begin with a step: start over if it does not follow the last one."""
        if self.before is not None:
            self.before.give_up_gradients()
        if step is not None and self.step == step - 1:
            return
        self.parameters.clear()
        self.gradients.clear()
        self.unshared.clear()
        self.before, self.zero = None, frozenset()


class StepAudit(StepOperands):
    """One step of one rank."""

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        self._recomputing = {key.op_name for key in self._flow.calls if key.graph == RECOMPUTED}
        self._seen: set[object] = set()
        self._squares: dict[str, float] = {}
        self._ways: dict[str, str] = {}
        """By module, the attributes with which a call followed from its definition."""
        self._added_to: dict[int, list[FlowOperand]] = defaultdict(list)
        """By the row of an addend, the outputs of modules that are sums with it."""

    def checked(self, peers: Mapping[int, Self], history: RankHistory) -> Iterator[CheckedTensor]:
        """Yield what is known of each of its tensors.

        Args:
            peers: the same step of all ranks, itself among them.
            history: what is kept of its rank; this step is added to it.
        """
        number, self._peers = self._step.key.step, peers
        history.begin(number)
        names = {operand.row: name for name, operand in self.parameters.items()}
        for updated in self._updates(history, names):
            yield updated._replace(is_replica=self._is_replica(names[updated.row]))
        for key, call in self._flow.calls.items():
            before = history.before
            for operand in call.inputs:
                yield self._input(call, operand, before)
            if is_parameter(key.op_type):
                continue
            if key.op_type == GRADIENT:
                yield from self._gradient(call, history)
            elif is_collective(key.op_type):
                yield from self._collective(call, peers)
            else:
                yield from map(self._as_read, self._outputs(call, history))
        self._remember(history, number)

    def sampled(self, share: float, order: np.random.Generator) -> Iterator[CheckedTensor]:
        """Yield what is known of the outputs of operators at random, without other ranks.

        Args:
            share: of all elements that operators read and wrote; one is looked at in any case.
            order: in which they are chosen.
        """
        calls = [
            each for each in self._flow.calls.values() if each.inputs and not is_collective(each.op_type)
        ]
        sizes = [sum(math.prod(each.shape) for each in (*call.inputs, *call.outputs)) for call in calls]
        left = share * sum(sizes)
        for number in order.permutation(len(calls)).tolist():
            yield from self._outputs(calls[number], RankHistory())
            left -= sizes[number]
            if left <= 0:
                return

    def _input(self, call: FlowCall, operand: FlowOperand, before: StepAudit | None) -> CheckedTensor:
        row = operand.row
        if row in self._flow.own_writes:
            return self._overwritten(call, operand, before)
        if call.key.graph == RECOMPUTED and operand is call.inputs[0]:
            return CheckedTensor(row, RECOMPUTED, self._recomputed(call, operand))
        passing = self._flow.producer(row)
        if passing is None:
            return CheckedTensor(row, "read from what was not dumped", _OPEN)
        if passing.by != BY_GRAPH:
            return CheckedTensor(row, COPY, _HOLDS)
        writer = self._flow.call_of[passing.source].key
        source = None if before is None else before.operand_of(writer)
        if source is not None and source.content == operand.content:
            return CheckedTensor(row, COPY, IdentityCheck("holds", "of the step before"))
        found = self._as_written(operand)
        reason = "the value before its update was not dumped" if found.status == "open" else COPY
        return CheckedTensor(row, reason, found)

    def _recomputed(self, call: FlowCall, operand: FlowOperand) -> IdentityCheck:
        """Hold what a call in the backward pass reads against what the same module read in the forward pass.

        What is kept in a narrower type is near to it. If it is not, parts of the inputs of other ranks tell
        from which it was put together.
        """
        if not self._recomputing.isdisjoint(holders(call.key.op_name)):
            return _OPEN
        same = call.op_type, call.key.op_name
        calls = (each for each in self._flow.calls.values() if (each.op_type, each.key.op_name) == same)
        forward = [each.inputs[0] for each in calls if each.inputs and not each.key.graph]
        if any(each.content == operand.content for each in forward):
            return _HOLDS
        known = [each for each in forward if each.shape == operand.shape and self._is_readable(each)]
        if len(known) != 1 or not self._is_readable(operand):
            return _OPEN
        should, actual = self._read(known[0]), self._read(operand)
        if should.dtype != actual.dtype or not unit_roundoff(actual.dtype):
            return _OPEN
        size = np.abs(wide(should))
        difference = shape_of_difference(should, actual, _NARROWEST * (size + size.max(initial=0.0) / 4))
        if not difference:
            return _OPEN
        is_mixed = any(
            shares_part(peer.inputs_of(call.key._replace(graph="")), should, actual)
            for peer in self._peers.values()
            if peer is not self
        )
        return failing(difference, "wrong group" if is_mixed else "")

    def _overwritten(self, call: FlowCall, operand: FlowOperand, before: StepAudit | None) -> CheckedTensor:
        if before is None or not is_optimizer(call.op_type):
            return CheckedTensor(operand.row, "written in place before it was dumped", _OPEN)
        name, then, now = plain_name(call.op_type), before.inputs_of(call.key), self.inputs_of(call.key)
        fitting = len(then) == len(now) and operand.slot < len(now)
        made = recorded_update(name, then, now, operand.slot) if fitting else iter(())
        found = check(self._read(operand), ((each, False) for each in made)) if fitting else _OPEN
        reason = f"{name}: {found.told or 'unknown state'}" if found.status == "open" else name
        return CheckedTensor(operand.row, reason, found)

    def _outputs(self, call: FlowCall, history: RankHistory) -> Iterator[CheckedTensor]:
        operands = None
        name = self._kind(call)
        for slot, output in enumerate(call.outputs):
            found, reason = _OPEN, self._reason(call, output)
            if not reason:
                operands = operands or self._operands(call)
                found = check(operands.outputs[slot], expectations(name, operands, slot))
                self._ways[call.key.op_name] = found.told if found.status == "holds" else ""
                if name != plain_name(call.op_type) or name in PARTS:
                    found = of_guess(found)
                doubt = self._doubt(call, output.io, operands, history, found)
                if not doubt and found.status != "holds" and self._is_stale(call, slot, history):
                    doubt = STALE
                found = IdentityCheck("open", doubt) if doubt else found
                reason = f"{name}: {found.told}" if found.status == "open" else name
            if found.status == "open" and self._is_copy(call, output):
                reason, found = COPY, _HOLDS
            elif name not in DEFINITIONS and is_container(call.op_type) and self._is_readable(output):
                is_chain = name == SEQUENTIAL
                found = self._passed_on(call, output) if is_chain else self._summed(call, output)
                reason = reason if found.status == "open" else SEQUENTIAL if is_chain else RESIDUAL
            yield CheckedTensor(output.row, reason, found)

    def _doubt(
        self, call: FlowCall, io: str, operands: CallOperands, history: RankHistory, found: IdentityCheck
    ) -> str:
        """Return why a call may have read or given something else than was dumped; "" if nothing tells so."""
        if found.status != "fails":
            return ""
        if writes_in_place(call.op_type):
            return "written in place"
        if is_awaited(io):
            return "nobody had waited for its collective"
        why = self._movement(call, history, found)
        return why or ("" if all(map(_is_written, operands.numbers)) else _UNWRITTEN)

    def _as_written(self, operand: FlowOperand) -> IdentityCheck:
        """Hold an input against the output that the graph feeds into it, if other inputs have its bytes."""
        written = self._flow.misread.get(operand.row)
        if written is None or not self._flow.consumers_by_content(written):
            return _OPEN
        return self._compared(self._flow.operands[written], operand)

    def _as_read(self, output: CheckedTensor) -> CheckedTensor:
        """Return what is known of an output, which fails if what it feeds in the graph read other bytes."""
        readers = [row for row, written in self._flow.misread.items() if written == output.row]
        if output.outcome.status == "fails" or not readers or self._flow.consumers_by_content(output.row):
            return output
        found = self._compared(self._flow.operands[readers[0]], self._flow.operands[output.row])
        return output if found.status == "open" else CheckedTensor(output.row, COPY, found)

    def _compared(
        self, should: FlowOperand, actual: FlowOperand, equal: IdentityCheck = _OPEN
    ) -> IdentityCheck:
        """Hold a tensor against another that should have the same bytes; `equal` is for equal numbers."""
        one, other = self.known(should), self.known(actual)
        if one is None or other is None or one.dtype != other.dtype:
            return _OPEN
        difference = shape_of_difference(one, other)
        return failing(difference) if difference else equal

    def _is_stale(self, call: FlowCall, slot: int, history: RankHistory) -> bool:
        """Return whether an output follows from the last parameters, and a replica's from the new ones."""
        names = [f"{call.key.op_name}.{each}" for each in PARAMETERS]
        last = {
            self.parameters[name].row: known.before
            for name in names
            if name in self.parameters
            and name not in self.places
            and (known := history.parameters.get(name)) is not None
        }
        replicas = [
            peer
            for peer in self._peers.values()
            if peer is not self
            and [*map(peer.parameter_content, names)] == [*map(self.parameter_content, names)]
        ]
        if not last or not replicas or not is_container(call.op_type) or self._is_moved_between(call):
            return False

        def reader(rows: Collection[int]) -> Callable[[FlowOperand], Array]:
            def read(operand: FlowOperand) -> Array:
                now, before = self._read(operand), last.get(operand.row)
                return now if before is None or operand.row not in rows else before.astype(now.dtype)

            return read

        some = (*([row] for row in last), last)
        # With looser rounding, nearly all parameters would do.
        follows = any(self._follows(call, slot, reader(rows), loosely=False) for rows in some)
        return follows and any(peer.follows(call.key, slot) for peer in replicas)

    def _movement(self, call: FlowCall, history: RankHistory, found: IdentityCheck) -> str:
        """Return why a call that fails may have had other parameters than were dumped; "" if it had those.

        Parameters that have moved change more than one element, or all by little.
        """
        is_far = found.times >= _FAR
        if is_far and found.difference is not None and found.difference.elements == 1:
            return ""
        if self._is_moved_by_hand(call, history):
            return "parameters without gradients that move within steps"
        is_moved = (call.key.occurrence and not is_far) or self._is_moved_between(call)
        return "parameters that move between calls" if is_moved else ""

    def _is_moved_by_hand(self, call: FlowCall, history: RankHistory) -> bool:
        """Return whether its module has parameters that change without gradients, as averages do."""
        names = {f"{call.key.op_name}.{each}" for each in PARAMETERS} & self.parameters.keys()
        before = history.before
        return any(
            before is None or before.parameter_content(name) != self.parameter_content(name)
            for name in (names - self.gradients.keys() if self.gradients else ())
        )

    def _is_moved_between(self, call: FlowCall) -> bool:
        """Return whether another module follows when it is first called, and not when as often as this."""
        number, name = call.key.occurrence, call.key.op_name
        of_modules = (key for key in self._flow.calls if f"{key.op_name}.weight" in self.parameters)
        others = [key for key in of_modules if number and key.occurrence == number and key.op_name != name]
        parent = name.rpartition(".")[0]
        others.sort(key=lambda key: not key.op_name.startswith(f"{parent}."))  # they may have one optimizer
        return any(
            self.follows(key._replace(occurrence=0), 0) > self.follows(key, 0) for key in others[:_TRIED]
        )

    def is_proved(self, row: int, peers: Mapping[int, Self]) -> bool | None:
        """Return whether an output or gradient follows from this step; None if that cannot be asked.

        Args:
            row: of the tensor.
            peers: the same step of all ranks, itself among them.
        """
        self._peers = peers
        for key, call in self._flow.calls.items():
            output = next((each for each in call.outputs if each.row == row), None)
            if output is None or is_parameter(key.op_type) or is_collective(key.op_type):
                continue
            read = [output, *call.inputs]
            if not all(self._is_readable(each) and _is_written(self._read(each)) for each in read):
                return None
            known = RankHistory()
            made = self._gradient(call, known) if key.op_type == GRADIENT else self._outputs(call, known)
            return any(each.row == row and each.outcome.status == "holds" for each in made)
        return None

    def follows(self, key: CallKey, slot: int) -> bool:
        """Return whether an output of a call follows from what it read."""
        call = self._flow.calls.get(key)
        is_known = (
            call is not None and slot < len(call.outputs) and not self._reason(call, call.outputs[slot])
        )
        return call is not None and is_known and self._follows(call, slot, self._read)

    def _follows(
        self, call: FlowCall, slot: int, read: Callable[[FlowOperand], Array], *, loosely: bool = True
    ) -> bool:
        operands = self._operands(call, read)
        made = expectations(self._kind(call), operands, slot)
        known = (each for each in made if loosely or not each[1])
        return check(operands.outputs[slot], known).status == "holds"

    def _summed(self, call: FlowCall, output: FlowOperand) -> IdentityCheck:
        """Hold the output of a module against sums of its input and of what the modules in it gave.

        Which sum it is, the data tell.
        """
        parts = [each for each in parts_of(self._flow, call, output) if self._is_readable(each)]
        if not 2 <= len(parts) <= _PARTS:
            return _OPEN
        actual, chosen = self._read(output), list[Sequence[int]]()
        found = of_guess(check(actual, sums_of([wide(self._read(each)) for each in parts], actual, chosen)))
        for number in chosen[-1] if found.status == "holds" else ():
            row, passing = parts[number].row, self._flow.producer(parts[number].row)
            self._added_to[passing.source if is_input(parts[number].io) and passing else row].append(output)
        return found

    def _passed_on(self, call: FlowCall, output: FlowOperand) -> IdentityCheck:
        """Hold what a sequence of modules returned against what the last of them gave.

        Its calls are known by what they read: the first what the sequence read, each other what the one
        before gave.
        """
        last = last_of_chain(self._flow, call)
        if last is None or last.shape != output.shape:
            return _OPEN
        return self._compared(last, output, _HOLDS)

    def _is_copy(self, call: FlowCall, output: FlowOperand) -> bool:
        """Return whether another call made the same, or the call of an optimizer has it as an input."""
        if self._flow.producer(output.row) is not None:
            return True
        return is_optimizer(call.op_type) and any(each.content == output.content for each in call.inputs)

    def _reason(self, call: FlowCall, output: FlowOperand) -> str:
        """Return why an output cannot be held against a definition; "" if it can."""
        name = self._kind(call)
        if name not in DEFINITIONS:
            return f"no definition of {name}"
        if not call.inputs:
            return "no inputs were dumped"
        if not all(self._is_readable(each) for each in (output, *call.inputs)):
            return "only statistics, or not numbers"
        return ""

    def _collective(self, call: FlowCall, peers: Mapping[int, Self]) -> Iterator[CheckedTensor]:
        name = plain_name(call.op_type)
        theirs = {rank: peer for rank, peer in peers.items() if peer.operand_of(call.key)}
        for output in call.outputs:
            given = {rank: peer.inputs_of(call.key) for rank, peer in theirs.items()}
            known = {rank: arrays[0] for rank, arrays in given.items() if arrays}
            if len(known) < 2 or not self._is_readable(output):
                yield CheckedTensor(output.row, f"{name}: the pieces of other ranks were not dumped", _OPEN)
                continue
            same = [
                rank
                for rank in known
                if (other := theirs[rank].operand_of(call.key)) and other.content == output.content
            ]
            out = self._read(output)
            groups = [[*known.values()], [known[rank] for rank in same]][: 1 + (1 < len(same) < len(known))]
            made = ((each, False) for pieces in groups for each in results(name, pieces, out))
            found = check(out, made)
            reason = f"{name}: {found.told}" if found.status == "open" else name
            yield CheckedTensor(output.row, reason, found)

    def _gradient(self, call: FlowCall, history: RankHistory) -> Iterator[CheckedTensor]:
        name = call.key.op_name
        for output in call.outputs:
            if output.content in self._seen:
                yield CheckedTensor(output.row, COPY, _HOLDS)
                continue
            self._seen.add(output.content)
            if not self._is_readable(output):
                yield CheckedTensor(output.row, "only statistics, or not numbers", _OPEN)
                continue
            actual = self._read(output)
            if OF_ACTIVATION.search(name):
                yield CheckedTensor(output.row, *self._of_activation(call, actual))
                continue
            cut = self._cut_of(name)
            way, shape = self._ways.get(name.rpartition(".")[0], ""), cut.shape if cut else output.shape
            own = [*self._shards_of(cut, self.local_gradient(name, shape, way, output.row))]
            earlier = history.gradients.get(name)
            reduced = [*self._shards_of(cut, self._of_ranks(name, cut, shape, way))]
            made = chain(
                reduced,
                own,
                self._with_earlier([*own, *reduced], earlier),
                (each for one in own[:1] if (each := scaled(one, actual)) is not None),
                self._with_earlier([*own, *reduced], earlier, actual),
            )
            found = check(actual, ((each, False) for each in made))
            if found.told in REDUCED:
                if check(actual, ((each, False) for each in own)).status == "holds":
                    found = replace(found, told="")  # what all ranks computed is the same
            elif reduced and found.status == "holds" and found.told != ADDED and self._is_shared(name):
                found = replace(found, told=NOT_REDUCED)
            found = _of_gradient(found, [actual, *(each.value for each in own)])
            reason = f"gradient: {found.told}" if found.status == "open" else "gradient"
            yield CheckedTensor(output.row, reason, found)

    def _of_activation(self, call: FlowCall, actual: Array) -> tuple[str, IdentityCheck]:
        given = self._given.get(call.outputs[0].row)
        made = iter(()) if given is None else self._activations.expectations(given, actual)
        found = of_guess(check(actual, ((each, False) for each in made)))
        if found.status == "fails" and found.times < _FAR:  # what is rounded in between is not known
            found = IdentityCheck("open", "rounding in between")
        return ("gradient" if found.status != "open" else "gradient of an activation"), found

    @cached_property
    def _given(self) -> dict[int, FlowOperand]:
        return {
            gradient.row: self._flow.calls[key].outputs[slot]
            for (key, slot), gradient in self._passed_back.items()
        }

    @cached_property
    def _activations(self) -> ActivationGradients:
        def operands_of(call: FlowCall) -> CallOperands | None:
            is_known = all(map(self._is_readable, (*call.inputs, *call.outputs)))
            return self._operands(call) if is_known and call.outputs else None

        def recorded(call: FlowCall) -> Array | None:
            gradient = self._gradient_of_output(call.key) if is_container(call.op_type) else None
            return None if gradient is None else self._read(gradient)

        return ActivationGradients(self._flow, self._kind, operands_of, recorded, self._added_to)

    def first_input(self) -> object:
        """Return what is equal for equal values of what was read first; None if nothing was."""
        return next((call.inputs[0].content for call in self._flow.calls.values() if call.inputs), None)

    def _is_shared(self, name: str) -> bool:
        """Return whether all ranks hold a parameter and read other data, so that gradients are reduced."""
        return self._is_replica(name) and len({peer.first_input() for peer in self._peers.values()}) > 1

    def _is_replica(self, name: str) -> bool:
        contents = {peer.parameter_content(name) for peer in self._holding(name)}
        return len(contents) == 1 and None not in contents

    @staticmethod
    def _shards_of(cut: ShardCut | None, made: Iterable[Expectation]) -> Iterator[Expectation]:
        """Yield what this rank holds of gradients of parameters that were gathered."""
        for each in made:
            error = np.broadcast_to(np.asarray(each.error), each.value.shape)
            yield each._replace(value=each.value[cut.own], error=error[cut.own]) if cut else each

    def _of_ranks(
        self, name: str, cut: ShardCut | None, shape: tuple[int, ...], way: str
    ) -> Iterator[Expectation]:
        """Yield the mean and the sum over the ranks that compute with the same parameter."""
        peers = self._holding(name, cut.along if cut else ())
        if not 2 <= len(peers) <= _RANKS:
            return
        parts = [peer.local_gradient(name, shape, way) for peer in peers]
        for each in zip(*parts, strict=False):
            for divisor, told in ((len(parts), "mean over ranks"), (1, "sum over ranks")):
                yield added(each, 0.0, divisor)._replace(told=told)

    @staticmethod
    def _with_earlier(
        own: list[Expectation], earlier: Array | None, actual: Array | None = None
    ) -> Iterator[Expectation]:
        """Yield gradients that are added to the last one: as it is, or clipped as `actual` shows."""
        if earlier is None:
            return
        before = wide(earlier)
        for each in own:
            rest = None if actual is None else each._replace(value=wide(actual) - each.value)
            share = 1.0 if rest is None else share_of(rest, before)
            if share:
                error = np.asarray(each.error) + 2.0**-22 * (np.abs(share * before) + np.abs(each.value))
                yield Expectation(each.value + share * before, error, ADDED)

    def _updates(self, history: RankHistory, names: Mapping[int, str]) -> Iterator[CheckedTensor]:
        """Check the parameters, with `names` by row, against what the optimizer makes of the last ones."""
        with np.errstate(all="ignore"):
            norm = history.norm()
        updates = []
        for name, operand in self.parameters.items():
            row, known, gradient = operand.row, history.parameters.get(name), history.gradients.get(name)
            passing = self._flow.producer(row)
            if passing is not None and writes_in_place(self._flow.call_of[passing.source].op_type):
                yield CheckedTensor(row, COPY, _HOLDS)
            elif known is None or gradient is None or not self._is_readable(operand):
                yield CheckedTensor(row, "parameter without an earlier value and gradient", _OPEN)
            else:
                after, is_read = self._read(operand), name not in history.zero
                updates.append(ParameterUpdate(row, known, wide(gradient), after, is_read=is_read))
        for update, judgement in judged(updates, norm):
            is_guess = names[update.row] in history.unshared
            found = of_unshared(judgement) if is_guess else judgement
            reason = "optimizer" if found.status != "open" else f"optimizer: {found.told}"
            yield CheckedTensor(update.row, reason, found)

    def _remember(self, history: RankHistory, number: int | None) -> None:
        history.step, history.before, history.zero = number, self, self._zero_before()
        # A gradient that ranks with the same parameter do not share is reduced before the optimizer reads it.
        replicas = {name: self._holding(name) for name in filter(self._is_replica, self.gradients)}
        apart = {name: theirs for name, theirs in replicas.items() if _part(name, theirs)}
        is_kept = sum(math.prod(each.shape) for each in self.parameters.values()) <= _KEPT
        history.elsewhere = self._squares_elsewhere() if is_kept else 0.0
        self._give_up()
        vars(self).pop("_activations", None)  # it holds this, in a cycle
        if not is_kept:
            return
        history.gradients = {
            name: self._read(each)
            for name, each in self.gradients.items()
            if not OF_ACTIVATION.search(name) and self._is_readable(each)
        }
        self._keep(history, apart)

    def _squares_elsewhere(self) -> float:
        """Return the sum of the squares of the gradients of the shards that this rank does not hold."""
        total = 0.0
        for name, own in self.places.items():
            others = {place.kept(): peer for peer in self._peers.values() if (place := peer.places.get(name))}
            total += sum(peer.squares_of(name) for place, peer in others.items() if place != own.kept())
        return total

    def squares_of(self, name: str) -> float:
        """Return the sum of the squares of the gradient of a parameter; 0 if it cannot be read."""
        if name not in self._squares:
            known = self.gradient_of(name)
            with np.errstate(all="ignore"):
                self._squares[name] = 0.0 if known is None else float(np.sum(known**2))
        return self._squares[name]

    def _zero_before(self) -> frozenset[str]:
        calls = [call for key, call in self._flow.calls.items() if key.op_type == GRADIENT and call.outputs]
        again = [call for call in calls if call.outputs[0] != self.gradients[call.key.op_name]]
        known = ((call, Tensor(self._step, call.outputs[0].row).statistics) for call in again)
        return frozenset(call.key.op_name for call, own in known if own.min == own.max == 0)

    def _keep(self, history: RankHistory, apart: Mapping[str, Sequence[StepAudit]]) -> None:
        """Keep the mean of the gradients that ranks do not share, and the values that updates begin with."""
        history.unshared |= apart.keys()
        for name in apart.keys() & history.gradients.keys():
            theirs = [peer.gradient_of(name) for peer in apart[name][:_RANKS]]
            known = [each for each in theirs if each is not None]
            del history.gradients[name]
            if len(known) == len(apart[name]) and len({each.shape for each in known}) == 1:
                history.gradients[name] = np.mean(known, axis=0)
        for name, operand in self.parameters.items():
            if name not in history.gradients:
                history.parameters.pop(name, None)
            elif name not in history.parameters and self._is_readable(operand):
                history.parameters[name] = ParameterHistory(wide(self._read(operand)))


def _part(name: str, replicas: Sequence[StepAudit]) -> bool:
    known = (each.gradients.get(name) for each in replicas)
    return len({each and each.content for each in known}) > 1


def _of_gradient(found: IdentityCheck, arrays: Iterable[Array]) -> IdentityCheck:
    """Return a check of a gradient, which fails by one element only, and if it is that of one rank."""
    if found.status != "fails":
        return found
    if not all(map(_is_written, arrays)):
        return IdentityCheck("open", _UNWRITTEN)
    if found.difference is None or found.difference.where != "element":
        return IdentityCheck("open", "other terms are added")
    of_ranks = found.told in REDUCED
    return IdentityCheck("open", "a summand differs, of which rank is not known") if of_ranks else found


def _is_written(array: Array) -> bool:
    """Return whether all numbers are such as a network computes with; masks of infinity are, too."""
    known = wide(array)
    return not np.any(np.isnan(known) | (np.isfinite(known) & (np.abs(known) > UNWRITTEN)))
