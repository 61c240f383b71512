"""Optimizer states that are out of step: of another step than the parameters, or than those of replicas."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ingest.questions.compare.held_tensors import HeldTensors
from ingest.questions.placement.agree import is_parameter, is_parameter_gradient
from ingest.questions.placement.equal_holders import EqualHolders, is_constant
from ingest.questions.placement.layout_answer import LayoutFinding
from ingest.reader.ranges import format_ranges
from workers.store.consolidated.blocks import TensorKey

OUT_OF_STEP = "optimizer state out of step"
#: What frameworks call states of optimizers: `exp_avg`, `moments`, `adam_m`, `momentum_buffer`, ...
_STATE = re.compile(
    r"(?:^|[._/])(?:moments?\d?|momentum\w*|exp_avg\w*|adam_?[mv]\d?|accum\w*|max_exp_avg\w*|master\w*|optim\w*"
    r"|opt_state|variance|velocity|state)(?:[._/]|$)"
)
#: Counters of steps: the same on all ranks of a job.
_COUNTER = re.compile(r"(?:^|[._/])(?:global_step|step|beta[12]_power|adam_t)$")
_SEPARATOR = re.compile(r"[._/]")
_PREFIX = "param."


class OptimizerStates:
    """Looks at the states of one step after the other."""

    def __init__(self) -> None:
        self._before: dict[TensorKey, dict[bytes, int]] = {}
        """By state, in which step any rank held which bytes last."""

    def find(self, held: HeldTensors, holders_of: Mapping[int, EqualHolders]) -> list[LayoutFinding]:
        """Return the states of a step that are out of step.

        A state must be the same on ranks that hold the same parameter of its shape; a counter, on all ranks.
        Optimizers that are cut by rank have states of other shapes, or each on one rank.
        """
        parameters = parameters_by_name(held.keys)
        findings = []
        for number, holders in holders_of.items():
            key = held.keys[number]
            if holders.is_known and len(holders.groups) > 1 and not is_constant_everywhere(held, number):
                findings += list(
                    self._finding(held, number, holders, parameter_of_state(key, parameters), holders_of)
                )
        self._remember(held)
        return findings

    def _finding(
        self,
        held: HeldTensors,
        number: int,
        holders: EqualHolders,
        parameter: int | None,
        holders_of: Mapping[int, EqualHolders],
    ) -> Iterator[LayoutFinding]:
        key = held.keys[number]
        if is_counter(key):
            ranks = [holder.rank for holder in held.holders[number]]
            yield self._of(held, number, holders, ranks, "ranks of a job count the same steps")
            return
        if parameter is None or not is_state(key):
            return
        shape = held.shapes(parameter)[0]
        for group in holders_of[parameter].groups:
            own = [
                holder.rank
                for holder, state_shape in zip(held.holders[number], held.shapes(number), strict=True)
                if holder.rank in group and state_shape == shape
            ]
            kinds = [[rank for rank in members if rank in own] for members in holders.groups]
            if sum(map(bool, kinds)) > 1:
                name = held.keys[parameter].name
                yield self._of(held, number, holders, own, f"these ranks hold the same {name}")

    def _of(
        self, held: HeldTensors, number: int, holders: EqualHolders, ranks: list[int], reason: str
    ) -> LayoutFinding:
        groups = sorted(([rank for rank in group if rank in ranks] for group in holders.groups), key=len)
        odd = next(group for group in groups if group)
        has_majority = len(odd) < len(groups[-1])
        text = (
            f"rank {format_ranges(odd)} holds another state than others, and {reason}"
            if has_majority
            else f"ranks {format_ranges(ranks)} hold different states, and {reason}"
        )
        for holder, (digest, _) in zip(held.holders[number], held.digests(number), strict=True):
            step = self._before.get(held.keys[number], {}).get(digest)
            if holder.rank in ranks and step is not None and any(digest):
                text += f"; rank {holder.rank} has that of step {step}"
        about = tuple(odd) if has_majority else tuple(ranks)
        return LayoutFinding(held.step, about, held.keys[number].name, OUT_OF_STEP, text)

    def _remember(self, held: HeldTensors) -> None:
        for number, key in enumerate(held.keys):
            if _STATE.search(key.op_name) or is_counter(key):
                known = self._before.setdefault(key, {})
                for digest, _ in held.digests(number):
                    known[digest] = held.step


def is_constant_everywhere(held: HeldTensors, number: int) -> bool:
    """Return whether a state is zero on all ranks, or has one value: but counters are not."""
    return is_constant(held, number) and len(held.shapes(number)[0]) > 0


def is_counter(key: TensorKey) -> bool:
    """Return whether a tensor counts steps, by its name."""
    return bool(_COUNTER.search(key.op_name))


def is_state(key: TensorKey) -> bool:
    """Return whether a tensor is a state of an optimizer, by its name."""
    return bool(_STATE.search(key.op_name)) and not is_parameter_gradient(key)


def parameters_by_name(keys: Sequence[TensorKey]) -> dict[str, int]:
    """Return the numbers of parameters by the names that states of them contain."""
    named = {}
    for number, key in enumerate(keys):
        if is_parameter(key) and not _STATE.search(key.op_name) and not is_counter(key):
            named[_plain(key.op_name)] = number
    return named


def _plain(name: str) -> str:
    return name.lstrip("._/").removeprefix(_PREFIX)


def parameter_of_state(key: TensorKey, parameters: Mapping[str, int]) -> int | None:
    """Return the parameter whose name is a part of the name of a state."""
    name = _plain(key.op_name)
    for match in _SEPARATOR.finditer(name):
        after, before = name[match.end() :], name[: match.start()]
        if after in parameters or before in parameters:
            return parameters[after] if after in parameters else parameters[before]
    return None
