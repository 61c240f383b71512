"""The calls of a step: which only one side makes, and whether both cut a batch into the same ones."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from ingest.questions.compare.dataflow import Dataflow
from ingest.questions.compare.sources import StepTensors
from ingest.reader.operator_kinds import StepPart, is_input, is_parameter
from workers.errors import DamagedStore
from workers.store.consolidated.blocks import TensorKey
from workers.tasks.operands import elements_of

#: Bytes of the first batches of all ranks of a side that are read to see whether both read the same.
_MOST_SAMPLES = 1 << 28


def call_of(key: TensorKey, number: int = 0) -> TensorKey:
    """Return what the tensors of a call of an operator have in common: by default, of its first call."""
    return key._replace(io="", slot=0, copy=0, occurrence=number)


def calls_of(ranks: Iterable[StepTensors]) -> dict[TensorKey, int]:
    """Return how often each operator was called, by its first call; of several ranks, the most."""
    calls: Counter[TensorKey] = Counter()
    for tensors in ranks:
        for key in tensors.keys:
            call = call_of(key)
            calls[call] = max(calls[call], key.occurrence + 1)
    return calls


def counted_calls(tensors: StepTensors, calls: Mapping[TensorKey, int]) -> Iterator[tuple[int, TensorKey]]:
    """Yield the tensors that others have, too, with calls counted from the first of these."""
    extra = _extra_calls(tensors, calls)
    if not extra:
        yield from enumerate(tensors.keys)
        return
    for number, key in enumerate(tensors.keys):
        if call_of(key, key.occurrence) not in extra:
            before = sum(call_of(key, earlier) in extra for earlier in range(key.occurrence))
            yield number, key._replace(occurrence=key.occurrence - before)


def _extra_calls(tensors: StepTensors, calls: Mapping[TensorKey, int]) -> set[TensorKey]:
    """Return the calls of passes that train nothing; and those that repeat the one before bit by bit.

    These are made to see shapes, or instead of keeping activations, if the other side called less often.
    """
    keys, own = tensors.keys, calls_of([tensors])
    extra = {call_of(keys[number], keys[number].occurrence) for number in Dataflow(keys).idle}
    contents: defaultdict[TensorKey, list[bytes]] = defaultdict(list)
    for number, key in enumerate(keys):
        contents[call_of(key, key.occurrence)].append(tensors.digests[number].tobytes())
    for call, digests in contents.items():
        is_repeated = digests == contents.get(call_of(call, call.occurrence - 1)) and all(map(any, digests))
        if is_repeated and 0 < calls.get(call_of(call), 0) < own[call_of(call)]:
            extra.add(call)
    return extra


def are_cut_into_other_calls(a: Mapping[int, StepTensors], b: Mapping[int, StepTensors]) -> bool:
    """Return whether both sides read the same samples in as many calls, but other samples in each of them.

    Micro-batches of replicas are cut from the share of each, those of one rank from all. Whole numbers show
    it, such as tokens: the first of which there are several calls.

    Raises:
        StoreError: a store cannot be reached.
        DumpError: a file of a dump changed, or cannot be read.
    """
    several = [{rank: side for rank, side in ranks.items() if _has_several_calls(side)} for ranks in (a, b)]
    if not all(several):
        return False
    samples = _same_samples(*several, calls=(a, b))
    return samples is not None and samples[0].keys() == samples[1].keys() and samples[0] != samples[1]


def are_cut_into_more_calls(a: Mapping[int, StepTensors], b: Mapping[int, StepTensors]) -> bool:
    """Return whether all ranks read the same samples on both sides, in calls of other sizes.

    That is, without gradients of parameters, which would tell whether both computed the same: the next
    parameters do.

    Raises:
        StoreError: a store cannot be reached.
        DumpError: a file of a dump changed, or cannot be read.
    """
    if any(StepPart.PARAMETER_GRADIENT in side.parts for ranks in (a, b) for side in ranks.values()):
        return False
    samples = _same_samples(a, b, calls=(a, b))
    return samples is not None and samples[0].keys() != samples[1].keys()


_Ranks: TypeAlias = Mapping[int, StepTensors]


def _same_samples(
    a: _Ranks, b: _Ranks, *, calls: tuple[_Ranks, _Ranks]
) -> tuple[dict[int, set[bytes]], dict[int, set[bytes]]] | None:
    """Return the samples by the number of the call; None if both sides do not read the same ones.

    Those of the first tensor that is read in several calls on either side. `calls` are of which ranks.
    """
    of_a = _calls_with_samples(a, calls_of(calls[1].values()))
    of_b = _calls_with_samples(b, calls_of(calls[0].values()))
    both = (key for key in of_b if key in of_a)
    first = next((key for key in both if any(n for n, *_ in (*of_a[key], *of_b[key]))), None)
    if first is None:
        return None
    try:
        samples = _samples_by_call(of_a[first]), _samples_by_call(of_b[first])
    except (DamagedStore, ValueError):
        return None  # whoever compares them names what is wrong
    read_a, read_b = (set().union(*side.values()) for side in samples)
    return samples if read_a == read_b else None


def first_read(side: StepTensors) -> bytes:
    """Return the digest of what the first module reads; b"" if no module is dumped."""
    number = _first_read(side)
    return b"" if number is None else side.contents[number]


def _first_read(side: StepTensors) -> int | None:
    modules = (n for n, key in enumerate(side.keys) if key.op_type.startswith("Module"))
    return next((n for n in modules if is_input(side.keys[n].io)), None)


def are_spread_otherwise(a: _Ranks, b: _Ranks) -> bool:
    """Return whether the ranks of both sides read the same samples first, and other ones than each other.

    Raises:
        StoreError: a store cannot be reached.
        DumpError: a file of a dump changed, or cannot be read.
    """
    if all(rank in b and first_read(side) == first_read(b[rank]) for rank, side in a.items()):
        return False
    shares = [_shares(ranks) for ranks in (a, b)]
    every = [frozenset().union(*of_side.values()) for of_side in shares]
    return bool(every[0]) and shares[0] != shares[1] and every[0] == every[1]


def _shares(ranks: _Ranks) -> dict[int, frozenset[bytes]]:
    """Return by rank the samples that it reads first; none if they are not known of all, or too large."""
    read = [(side, n) for side in ranks.values() if (n := _first_read(side)) is not None and side.dumped[n]]
    if len(read) < len(ranks) or sum(int(side.nbytes[n]) for side, n in read) > _MOST_SAMPLES:
        return {}
    return {side.key.rank: _samples(side, n) for side, n in read}


def _samples(side: StepTensors, number: int) -> frozenset[bytes]:
    """Return what a tensor holds along its first axis."""
    shape = side.shapes[number]
    (elements,) = elements_of([side.operand(number)])
    values = elements.read(0, math.prod(shape))
    return frozenset(row.tobytes() for row in values.reshape(*shape[:1], -1)) if all(shape) else frozenset()


#: The number of a call, and a tensor of it: the step of a rank and the number there.
_Call: TypeAlias = tuple[int, StepTensors, int]


def _has_samples(side: StepTensors, number: int) -> bool:
    return "int" in side.dtypes[number] and len(side.shapes[number]) > 1


def _has_several_calls(side: StepTensors) -> bool:
    return any(key.occurrence and _has_samples(side, number) for number, key in enumerate(side.keys))


def _calls_with_samples(
    ranks: Mapping[int, StepTensors], calls: Mapping[TensorKey, int]
) -> dict[TensorKey, list[_Call]]:
    """Return the tensors that have samples, by the key in the first call."""
    found: defaultdict[TensorKey, list[_Call]] = defaultdict(list)
    for side in ranks.values():
        for number, key in counted_calls(side, calls):
            if _has_samples(side, number) and side.dumped[number]:
                found[key._replace(occurrence=0)].append((key.occurrence, side, number))
    return found


def _samples_by_call(tensors: Iterable[_Call]) -> dict[int, set[bytes]]:
    samples: defaultdict[int, set[bytes]] = defaultdict(set)
    for call, side, number in tensors:
        (elements,) = elements_of([side.operand(number)])
        shape = side.shapes[number]
        rows = elements.read(0, math.prod(shape)).reshape(-1, shape[-1])
        samples[call] |= {row.tobytes() for row in rows}
    return samples


def are_cut_over_ranks(a: StepTensors, b: StepTensors, ranks: int) -> bool:
    """Return whether the shapes of one step of a rank tell that the two sides are cut in other ways."""
    shapes = dict(zip(b.keys, b.shapes, strict=True))
    of_both = {own: shape for own, shape in zip(a.keys, a.shapes, strict=True) if own in shapes}
    other = [own for own, shape in of_both.items() if shapes[own] != shape]
    if any(is_parameter(own.op_type) for own in other):
        return True
    begin = next((own for own in of_both if not is_parameter(own.op_type)), None)
    if not other or begin == other[0]:
        return False
    calls = calls_of([a]), calls_of([b])
    return all(
        len({of_side[call_of(own)] for of_side in calls}) == 1 and _is_cut(of_both[own], shapes[own], ranks)
        for own in other
    )


def _is_cut(a: tuple[int, ...], b: tuple[int, ...], ranks: int) -> bool:
    """Return whether one of two shapes is that of a piece of the other, cut along one axis over ranks."""
    lengths = [sorted(axis) for axis in zip(a, b, strict=False) if axis[0] != axis[1]]
    if len(a) != len(b) or len(lengths) != 1 or not lengths[0][0]:
        return False
    times, rest = divmod(lengths[0][1], lengths[0][0])
    return not rest and ranks % times == 0
