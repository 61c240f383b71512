"""What can be done wrong in `proving.programs.megatron`, and where it is seen.

In places, `{at}` is the module or parameter that the case names, `{holds}` the module that has it, and
`{reads}` the one whose output it reads.
"""

from __future__ import annotations

from proving.case import Cause, Fault


def _mistake(places: str, *causes: Cause, lag: int = 0, hidden: str = "", with_first: bool = False) -> Fault:
    return Fault(tuple(places.split()), causes, lag, hidden, with_first)


_CHOICE = "nothing in one run says what the user meant"
_SENT = "what the ranks send to one another is not dumped"
_OUTPUT, _WEIGHT, _GRADIENT = "{at} {holds}", "Parameter.{at}* {at}", "Gradient.{at}* {holds}"
_INPUT_GRADIENT = "Gradient.{reads}* {reads} {at}"
_LOSS = "saved.loss* Gradient.model* model Gradient.head.output* Gradient.head.weight*"
_FURTHER = f"{_LOSS} Gradient.further*"
_INPUT = "model embed"

FAULTS = {
    # tensor parallelism, forward
    "no reduction forward": _mistake(_OUTPUT, Cause.MISSING_REDUCTION),
    "reduced twice forward": _mistake(_OUTPUT, Cause.DOUBLED_REDUCTION, Cause.FACTOR),
    "average instead of sum": _mistake(_OUTPUT, Cause.FACTOR),
    "wrong group forward": _mistake(_OUTPUT, Cause.WRONG_GROUP, Cause.MISSING_REDUCTION),
    "bias on each rank": _mistake(_OUTPUT, Cause.BIAS_ON_EVERY_RANK),
    "bias lost": _mistake(_OUTPUT, Cause.OFFSET, Cause.OPERATOR, Cause.NO_GRADIENT),
    "lost in transit": _mistake(f"{_OUTPUT} {_GRADIENT}", Cause.BLOCK),
    "words of others not masked": _mistake("{at}", Cause.OPERATOR, Cause.OFFSET),
    # backward
    "no reduction backward": _mistake(_INPUT_GRADIENT, Cause.MISSING_REDUCTION),
    "reduced twice backward": _mistake(_INPUT_GRADIENT, Cause.DOUBLED_REDUCTION, Cause.FACTOR),
    "wrong group backward": _mistake(_INPUT_GRADIENT, Cause.WRONG_GROUP, Cause.MISSING_REDUCTION),
    "gradients of equal losses added up": _mistake(
        "Gradient.head.output* head Gradient.head.weight*", Cause.DOUBLED_REDUCTION, Cause.FACTOR
    ),
    # loading
    "shards exchanged": _mistake(_WEIGHT, Cause.WRONG_SHARD, Cause.PERMUTED, Cause.BLOCK, hidden=_CHOICE),
    "same shard": _mistake(_WEIGHT, Cause.WRONG_SHARD, with_first=True),
    "interleaved shards": _mistake(_WEIGHT, Cause.WRONG_SHARD, Cause.PERMUTED, hidden=_CHOICE),
    "transposed weight": _mistake(_WEIGHT, Cause.TRANSPOSED, hidden=_CHOICE),
    "rows in another order": _mistake(_WEIGHT, Cause.PERMUTED, hidden=_CHOICE),
    "experts exchanged": _mistake("Parameter.{at}* {at}", Cause.WRONG_SHARD, Cause.PERMUTED, hidden=_CHOICE),
    # operators
    "eps of one norm": _mistake("{at}", Cause.FACTOR, Cause.OPERATOR, hidden=_CHOICE),
    "other gelu": _mistake("{at} {at}.act", Cause.OPERATOR, hidden=_CHOICE),
    "scores not scaled": _mistake("{at} {at}.norm {at}.out {at}.out.input*", Cause.OPERATOR, hidden=_CHOICE),
    "mask begins anew on each rank": _mistake(
        "{at} {at}.norm {at}.out {at}.out.input*", Cause.OPERATOR, hidden=_CHOICE
    ),
    "positions begin anew on each rank": _mistake(
        "positions model", Cause.OFFSET, Cause.SHIFT, Cause.OPERATOR, hidden=_CHOICE
    ),
    "gates add up to one": _mistake("{at}", Cause.OPERATOR, Cause.FACTOR, hidden=_CHOICE),
    # sequence and context parallelism, experts
    "tokens out of order": _mistake(_OUTPUT, Cause.PERMUTED, Cause.SHIFT, Cause.BLOCK),
    "wrong group gather": _mistake(_OUTPUT, Cause.WRONG_GROUP),
    "wrong group of keys": _mistake(
        "{at} {at}.norm {at}.out {at}.out.input*", Cause.WRONG_GROUP, hidden=_SENT
    ),
    "gradients of keys not added up": _mistake(
        "Gradient.{at}.k.* Gradient.{at}.v.* {at} {at}.k {at}.v", Cause.MISSING_REDUCTION, hidden=_SENT
    ),
    "padding mask cut over a wrong group": _mistake(
        "{at}", Cause.WRONG_GROUP, Cause.OPERATOR, Cause.ROW, hidden=_SENT
    ),
    "tokens come back in another order": _mistake("{at}", Cause.PERMUTED, hidden=_SENT),
    "recomputed from a wrong input": _mistake("{at} {at}.* Gradient.{at}.*", Cause.OPERATOR),
    "kept parts gathered from a wrong group": _mistake("{at} {at}.* Gradient.{at}.*", Cause.WRONG_GROUP),
    # gradients
    "gradient of a norm not added up": _mistake(_GRADIENT, Cause.MISSING_REDUCTION),
    "norm added up over a wrong group": _mistake(_GRADIENT, Cause.WRONG_GROUP, Cause.MISSING_REDUCTION),
    "gradient of the norm of heads not added up": _mistake(
        "Gradient.{at}.weight* {at}", Cause.MISSING_REDUCTION
    ),
    "gradient of the router not added up": _mistake(
        "Gradient.{at}.router.weight* {at}.router {at}", Cause.MISSING_REDUCTION
    ),
    "context parallel ranks not added up": _mistake(_GRADIENT, Cause.MISSING_REDUCTION),
    "gradient not averaged": _mistake(_GRADIENT, Cause.MISSING_REDUCTION),
    "averaged over a wrong group": _mistake(_GRADIENT, Cause.WRONG_GROUP, Cause.MISSING_REDUCTION),
    "averaged before the last microbatch": _mistake(_GRADIENT, Cause.MISSING_REDUCTION),
    "summed instead of averaged": _mistake(_GRADIENT, Cause.FACTOR, hidden=_CHOICE),
    "divided twice": _mistake(_GRADIENT, Cause.FACTOR, hidden=_CHOICE),
    "experts not divided": _mistake("Gradient.*experts*", Cause.FACTOR, hidden=_CHOICE),
    # loss
    "divided by the own number of targets": _mistake(_LOSS, Cause.FACTOR, hidden=_CHOICE),
    "not divided by the number of microbatches": _mistake(_LOSS, Cause.FACTOR, hidden=_CHOICE),
    "further loss divided by the own number of targets": _mistake(_FURTHER, Cause.FACTOR, hidden=_CHOICE),
    "further loss divided by the size of context parallelism": _mistake(
        _FURTHER, Cause.FACTOR, hidden=_CHOICE
    ),
    "further loss not divided by the number of microbatches": _mistake(
        _FURTHER, Cause.FACTOR, hidden=_CHOICE
    ),
    "further targets end on each rank": _mistake(_FURTHER, Cause.OPERATOR, Cause.FACTOR, hidden=_CHOICE),
    "targets of another part of the sequence": _mistake(
        _LOSS, Cause.PERMUTED, Cause.OPERATOR, hidden=_CHOICE
    ),
    "targets not shifted": _mistake(_LOSS, Cause.SHIFT, Cause.OPERATOR, hidden=_CHOICE),
    # optimizer
    "clipped on one rank only": _mistake(
        "Parameter.*", Cause.CLIPPED, Cause.FACTOR, Cause.WRONG_UPDATE, lag=1
    ),
    "a shard left out of the norm": _mistake(
        "Parameter.*",
        Cause.CLIPPED,
        Cause.FACTOR,
        Cause.WRONG_UPDATE,
        lag=1,
        hidden="the limit is not dumped",
    ),
    "update not gathered": _mistake(
        "Parameter.{at}* {holds}", Cause.STALE, Cause.NOT_UPDATED, Cause.WRONG_UPDATE, lag=1
    ),
    # memory
    "parameter changes": _mistake(
        "Parameter.{at}* {holds}",
        Cause.BIT,
        Cause.ELEMENT,
        Cause.ROW,
        Cause.WRONG_UPDATE,
        Cause.OFFSET,
        lag=1,
    ),
    "gradient changes": _mistake(_GRADIENT, Cause.BIT, Cause.ELEMENT, Cause.ROW, Cause.OFFSET),
    "activation changes": _mistake(
        "{at}", Cause.BIT, Cause.ELEMENT, Cause.ROW, Cause.OFFSET, Cause.NOT_FINITE
    ),
    # data
    "batch of one token": _mistake(_INPUT, Cause.CONSTANT_BATCH, Cause.BAD_BATCH),
    "same batch on all ranks": _mistake(_INPUT, Cause.SAME_BATCH, with_first=True),
}
