"""What is run, what is asked of it, and what is true of it: plain values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any


class Cause(StrEnum):
    """What can be the matter, in the words of the field: the vocabulary of truths and of statements."""

    MISSING_REDUCTION = "missing reduction"
    DOUBLED_REDUCTION = "doubled reduction"
    WRONG_GROUP = "wrong group"
    BIAS_ON_EVERY_RANK = "bias on every rank"
    WRONG_SHARD = "wrong shard"
    SAME_BATCH = "same batch on two ranks"
    FACTOR = "factor"
    OFFSET = "offset"
    SIGN = "sign"
    BIT = "flipped bit"
    ELEMENT = "one element"
    ROW = "one row"
    BLOCK = "one block"
    SHIFT = "shift by one place"
    PERMUTED = "permutation"
    TRANSPOSED = "transposition"
    STALE = "stale value"
    NOT_UPDATED = "update does not happen"
    WRONG_UPDATE = "update does not follow from the gradient"
    ACCUMULATED = "gradients add up over steps"
    CLIPPED = "gradients clipped to nothing"
    NO_GRADIENT = "no gradient"
    STATE_LOST = "optimizer state lost"
    STATE_OUT_OF_STEP = "optimizer state out of step"
    MODE = "mode changed"
    CONSTANT_BATCH = "batch of one value"
    REPEATED_BATCH = "batch repeated"
    BAD_BATCH = "bad values in a batch"
    NOT_FINITE = "NaN or Inf born"
    DTYPE = "type of elements"
    OPERATOR = "operator computes something else"


class Dump(StrEnum):
    """A way to dump."""

    STATS = "record, statistics"
    TENSORS = "record, tensors"
    FUNCTIONS = "record, functions"
    HOOKS = "hooks, torch.save"
    SAFETENSORS = "hooks, safetensors"
    SGLANG = "SGLang's dumper"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a program. Equal runs write equal dumps, so each is run once."""

    program: str
    """A module of `proving.programs`."""
    options: tuple[tuple[str, Any], ...] = ()
    """Options of the program that are not as usual, in order of names."""
    fault: str = ""
    """A key of the program's faults; "" for none."""
    at: int = 0
    """The step in which the fault begins."""
    on: tuple[int, ...] = ()
    """The ranks that have it; all if empty."""
    ranks: int = 1
    steps: int = 10
    dump: Dump = Dump.TENSORS
    seed: int = 0

    def having(self, **options: Any) -> Run:
        """Return the run with other options of the program."""
        return replace(self, options=tuple(sorted({**dict(self.options), **options}.items())))

    @property
    def id(self) -> str:
        """A short name for its directory."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Case:
    """A run, what is asked of it, and where it comes from."""

    name: str
    run: Run
    reference: Run | None = None
    """The healthy run to compare it with."""
    alone: bool = True
    """Whether questions about this run alone are asked."""
    source: str = "own"
    """The list that it is taken from, with its number there: `TrainCheck 7`."""

    @property
    def healthy(self) -> bool:
        """Whether there is nothing to be found."""
        return not self.run.fault

    @property
    def list(self) -> str:
        """The list without the number."""
        return "healthy" if self.healthy else self.source.rpartition(" ")[0] or self.source


@dataclass(frozen=True, slots=True)
class Fault:
    """What a program knows of one of its faults, wherever and whenever it is switched on."""

    places: tuple[str, ...]
    """Globs of the operators, modules or parameters that are accepted as the place: `blocks.1.norm`, or, with
    what is recorded of them, `Gradient.*.weight`. What follows from the fault elsewhere is not among them."""
    causes: tuple[Cause, ...] = ()
    """The causes that are true of it. A statement of any other is wrong."""
    lag: int = 0
    """How many steps later its first trace is: 1 for what an optimizer does, which the next step shows."""
    hidden: str = ""
    """Why one run without reference does not show it; "" if it does."""
    with_first: bool = False
    """Whether ranks have what is that of the first: it is as wrong, as no value tells whose it should be."""
    edit: Callable[[Any], None] | None = None
    """What makes the mistake: it changes the model. None if the program asks `Job.wrong` instead."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What was wrong in a run. The program writes it when it does the wrong thing."""

    fault: str
    places: tuple[str, ...]
    causes: tuple[Cause, ...]
    steps: tuple[int, int]
    """The first and the last step that are accepted as the first wrong one."""
    ranks: tuple[int, ...]
    hidden: str = ""

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Truth:
        """Return what `to_json` wrote."""
        known = json.loads(text)
        return cls(
            fault=known["fault"],
            places=tuple(known["places"]),
            causes=tuple(map(Cause, known["causes"])),
            steps=(known["steps"][0], known["steps"][1]),
            ranks=tuple(known["ranks"]),
            hidden=known["hidden"],
        )


class Verdict(StrEnum):
    """What an answer is worth."""

    RIGHT = "right"
    OPEN = "open"
    SILENT = "silent"
    WRONG = "wrong"
    QUIET = "quiet"
    FALSE_ALARM = "false alarm"
    BROKEN = "broken"
    """The question ended with an error."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One thing that an answer says, whatever the question was."""

    question: str
    text: str
    places: tuple[str, ...] = ()
    """Names of the tensor, and of its operator, with what is recorded of them."""
    step: int | None = None
    ranks: tuple[int, ...] = ()
    """None if the answer does not say which."""
    cause: str = ""
    """A `Cause`, or the answer's own word if it is none of these; "" if the answer states no cause."""
    admits: bool = False
    """Whether the answer says that the cause, or which of several ranks it is, is not known."""


@dataclass(frozen=True, slots=True)
class Result:
    """How the answers to a case were."""

    case: Case
    truth: Truth | None
    verdicts: Mapping[str, Verdict]
    """By question: of one run `anomalies`, `origin`, ...; of two `compare`."""
    statements: tuple[Statement, ...] = field(repr=False)
    problem: str = ""

    @property
    def compared(self) -> Verdict | None:
        """The verdict on the comparison with the reference."""
        return self.verdicts.get("compare")

    @property
    def alone(self) -> Verdict | None:
        """The verdict on all answers about the run alone: a wrong one is not mended by a right one."""
        given = [verdict for question, verdict in self.verdicts.items() if question != "compare"]
        return min(given, key=_WORST_FIRST.index, default=None)


#: A wrong answer spoils a right one; a right one makes up for silence.
_WORST_FIRST = (
    Verdict.BROKEN,
    Verdict.WRONG,
    Verdict.FALSE_ALARM,
    Verdict.RIGHT,
    Verdict.OPEN,
    Verdict.SILENT,
    Verdict.QUIET,
)
