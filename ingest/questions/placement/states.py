"""Optimizer states that are out of step: of another step than the parameters, or than those of replicas."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

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


def parameters_of_states(keys: Sequence[TensorKey]) -> dict[int, int | None]:
    """Return the states and counters among the tensors of a run, found by name: by place, its parameter.

    Of counters, None.
    """
    parameters = {
        _plain(key.op_name): place
        for place, key in enumerate(keys)
        if is_parameter(key) and not _STATE.search(key.op_name) and not _COUNTER.search(key.op_name)
    }
    found: dict[int, int | None] = {}
    for place, key in enumerate(keys):
        if _COUNTER.search(key.op_name):
            found[place] = None
        elif _STATE.search(key.op_name) and "grad" not in key.name.lower():
            parameter = _parameter_of(_plain(key.op_name), parameters)
            if parameter is not None:
                found[place] = parameter
    return found


def out_of_step(
    states: Mapping[int, int | None], seen: AgreementOfRanks, statistics: StepStatistics, number: int
) -> Iterator[tuple[int, tuple[int, ...], str]]:
    """Yield the states of a step that differ where the parameter, of as many elements, does not.

    With the ranks that are off (without a majority, all that should hold the same), and what shows it.
    """
    all_ranks, block = statistics.snapshot.ranks, None
    for place, parameter in states.items():
        if not (apart := _apart(seen, number, place, parameter)):
            continue
        block = block or statistics.block(statistics.snapshot.steps[number])
        ranks_apart = {own: all_ranks[own] for own in apart}
        groups = _groups(seen.labels(number, place), block, place, parameter, ranks_apart)
        if len(groups) < 2:
            continue
        odd, *_, most = sorted(groups, key=len)
        ranks = tuple(sorted(chain.from_iterable(groups)))
        text = f"{named_ranges('rank', ranks)} hold different states"
        if len(odd) < len(most):
            text = f"{named_ranges('rank', odd)} holds another state than others"
        reason = "ranks of a job count the same steps"
        if parameter is not None:
            reason = f"these ranks hold the same {seen.keys[parameter].name}"
        told = "".join(_earlier(statistics, block, rank, place) for rank in ranks)
        yield place, tuple(odd) if len(odd) < len(most) else ranks, f"{text}, and {reason}{told}"


def _apart(seen: AgreementOfRanks, number: int, place: int, parameter: int | None) -> tuple[int, ...]:
    """Return the ranks, by their places, that hold other states and should not; () if none do."""
    if parameter is not None:
        return () if seen.constant[number, place] else seen.splits(number, place, parameter)
    held = tuple(np.flatnonzero(seen.labels(number, place) >= 0).tolist())
    is_shared = seen.is_known(number, place) and not seen.is_replicated(number, place)
    return held if is_shared and len(held) > 1 else ()


def _groups(
    labels: Labels, block: Block, place: int, parameter: int | None, ranks: Mapping[int, int]
) -> list[list[int]]:
    """Group ranks, given by place, by what they hold; without those that hold only a piece of it."""
    counts = block.statistic("count")
    groups: dict[int, list[int]] = {}
    for own, rank in ranks.items():
        row = block.ranks.index(rank)
        if parameter is None or counts[row, place] == counts[row, parameter]:
            groups.setdefault(int(labels[own]), []).append(rank)
    return list(groups.values())


def _earlier(statistics: StepStatistics, block: Block, rank: int, place: int) -> str:
    """Return the first of the last steps before one in which any rank held what a rank holds in it."""
    content = block.digest[block.ranks.index(rank), place]
    for step in [step for step in statistics.snapshot.steps if step < block.step][-_LOOK_BACK:]:
        before = statistics.block(step)
        if place < before.digest.shape[1] and (before.digest[:, place] == content).all(axis=1).any():
            return f"; rank {rank} has that of step {step}"
    return ""


def _plain(name: str) -> str:
    return name.lstrip("._/").removeprefix(_PREFIX)


def _parameter_of(name: str, parameters: Mapping[str, int]) -> int | None:
    """Return the parameter whose name is a part of the name of a state."""
    for match in _SEPARATOR.finditer(name):
        after, before = name[match.end() :], name[: match.start()]
        if after in parameters or before in parameters:
            return parameters[after] if after in parameters else parameters[before]
    return None
