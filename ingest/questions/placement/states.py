"""Optimizer states that are out of step: of another step than the parameters, or than those of replicas."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from ingest.questions.divergence.agreement import AgreementOfRanks, Labels
from ingest.questions.placement.agree import is_parameter
from ingest.reader.choice import named_ranges
from ingest.reader.step_statistics import StepStatistics
from workers.store.consolidated.blocks import Block, TensorKey

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
#: How many steps before are searched for the bytes of a state.
_LOOK_BACK = 4


class OutOfStep(NamedTuple):
    """A state that differs on ranks which hold the same parameter."""

    tensor: int
    ranks: tuple[int, ...]
    """Those that are off; without a majority, all that should hold the same."""
    text: str


class States:
    """The states and counters among the tensors of a run, by their places."""

    def __init__(self, keys: Sequence[TensorKey]) -> None:
        """Find them by their names."""
        parameters = {
            _plain(key.op_name): place
            for place, key in enumerate(keys)
            if is_parameter(key) and not _STATE.search(key.op_name) and not _COUNTER.search(key.op_name)
        }
        self.parameter_of: dict[int, int | None] = {}
        """By state its parameter; of counters, None."""
        for place, key in enumerate(keys):
            if _COUNTER.search(key.op_name):
                self.parameter_of[place] = None
            elif _STATE.search(key.op_name) and "grad" not in key.name.lower():
                parameter = _parameter_of(_plain(key.op_name), parameters)
                if parameter is not None:
                    self.parameter_of[place] = parameter
        self._keys = keys

    def out_of_step(
        self, seen: AgreementOfRanks, statistics: StepStatistics, number: int
    ) -> Iterator[OutOfStep]:
        """Yield the states of a step that differ where the parameter, of as many elements, does not."""
        for place, parameter in self.parameter_of.items():
            if parameter is None:
                held = tuple(np.flatnonzero(seen.labels(number, place) >= 0).tolist())
                is_shared = seen.is_known(number, place) and not seen.is_replicated(number, place)
                apart = held if is_shared and len(held) > 1 else ()
            else:
                apart = () if seen.constant[number, place] else seen.splits(number, place, parameter)
            if apart and (found := self._described(seen, statistics, number, place, apart)):
                yield found

    def _groups(self, block: Block, labels: Labels, place: int, ranks: Mapping[int, int]) -> list[list[int]]:
        """Group ranks, named by place, by what they hold; without those that hold only a piece of it."""
        counts, parameter = block.statistic("count"), self.parameter_of[place]
        groups: dict[int, list[int]] = {}
        for own, rank in ranks.items():
            row = block.ranks.index(rank)
            if parameter is None or counts[row, place] == counts[row, parameter]:
                groups.setdefault(int(labels[own]), []).append(rank)
        return list(groups.values())

    def _described(
        self,
        seen: AgreementOfRanks,
        statistics: StepStatistics,
        number: int,
        place: int,
        apart: Sequence[int],
    ) -> OutOfStep | None:
        snapshot, parameter = statistics.snapshot, self.parameter_of[place]
        block = statistics.block(snapshot.steps[number])
        ranks_apart = {own: snapshot.ranks[own] for own in apart}
        groups = self._groups(block, seen.labels(number, place), place, ranks_apart)
        if len(groups) < 2:
            return None
        reason = "ranks of a job count the same steps"
        if parameter is not None:
            reason = f"these ranks hold the same {self._keys[parameter].name}"
        odd, *_, most = sorted(groups, key=len)
        ranks = tuple(sorted(chain.from_iterable(groups)))
        has_majority = len(odd) < len(most)
        text = f"{named_ranges('rank', ranks)} hold different states, and {reason}"
        if has_majority:
            text = f"{named_ranges('rank', odd)} holds another state than others, and {reason}"
        earlier = [*reversed(snapshot.steps[:number])][:_LOOK_BACK]
        for rank in ranks:
            step = _earlier(statistics, earlier, rank, place, block)
            text += "" if step is None else f"; rank {rank} has that of step {step}"
        return OutOfStep(place, tuple(odd) if has_majority else ranks, text)


def _earlier(
    statistics: StepStatistics, steps: Sequence[int], rank: int, place: int, block: Block
) -> int | None:
    """Return the last of some steps in which any rank held what a rank holds now."""
    content = block.digest[block.ranks.index(rank), place]
    for step in reversed(steps):
        before = statistics.block(step)
        if place < before.digest.shape[1] and (before.digest[:, place] == content).all(axis=1).any():
            return step
    return None


def _plain(name: str) -> str:
    return name.lstrip("._/").removeprefix(_PREFIX)


def _parameter_of(name: str, parameters: Mapping[str, int]) -> int | None:
    """Return the parameter whose name is a part of the name of a state."""
    for match in _SEPARATOR.finditer(name):
        after, before = name[match.end() :], name[: match.start()]
        if after in parameters or before in parameters:
            return parameters[after] if after in parameters else parameters[before]
    return None
