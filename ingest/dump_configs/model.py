"""What a configuration asks for, as values that all dump systems share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

#: What file names have instead of these characters.
_REPLACED = re.compile(r"[/\\. ]")


class Io(StrEnum):
    """Which tensors of an operator are dumped."""

    BOTH = "inputs and outputs"
    INPUTS = "inputs"
    OUTPUTS = "outputs"

    def includes(self, io: str) -> bool:
        """Return whether a tensor is dumped, given its `io`."""
        if self is Io.BOTH:
            return True
        return io.startswith("input" if self is Io.INPUTS else "output")


class Match(StrEnum):
    """How an entry of a list of operators is compared with the name of an operator."""

    NAME = "name"
    """With the full name, as files and the framework spell it."""
    TYPE = "type"
    """The type in the name contains it, in lower or upper case."""
    REGEX = "regex"
    """It is a regular expression for the full name."""
    PART = "part"
    """The name contains it."""


@dataclass(frozen=True)
class OperatorPattern:
    """One entry of a list of operators."""

    text: str
    """As the configuration has it."""
    match: Match
    expression: str = ""
    """The regular expression, for `Match.REGEX`."""

    def matches(self, op_type: str, op_name: str) -> bool:
        """Return whether it chooses an operator, given its type and its name in the store."""
        if self.match is Match.NAME:
            return self._flat in (flatten(op_name), flatten(f"{op_type}.{op_name}"))
        if self.match is Match.TYPE:
            return self.text.lower() in op_type.lower()
        if self.match is Match.PART:
            return self.text in op_name
        return self._regex is not None and self._regex.fullmatch(op_name) is not None

    @cached_property
    def _flat(self) -> str:
        return flatten(self.text)

    @cached_property
    def _regex(self) -> re.Pattern[str] | None:
        """The expression for names in which `_` stands for `/`; None if Python does not understand it."""
        try:
            return re.compile(self.expression.replace("/", "[/_]"))
        except re.error:
            return None


@dataclass(frozen=True, slots=True)
class AskedDump:
    """What a configuration asks for."""

    steps: frozenset[int] | None = None
    """None: all, or not known."""
    operators: tuple[OperatorPattern, ...] | None = None
    """None: all."""
    devices: frozenset[int] | None = None
    """Ranks or device ids; None: all."""
    io: Io = Io.BOTH
    tensors: bool = True
    """Whether elements are dumped."""
    statistics: bool = False
    """Whether statistics are."""
    categories: tuple[str, ...] = ()
    """The statistics, as the configuration names them; empty for the default."""
    sample: int = 0
    """How many elements of each tensor are dumped at its beginning and its end; 0: all."""
    directory: str = ""
    """Where the dump goes."""
    only: str = ""
    """What else limits it, in words, such as `operators that overflow`."""

    @property
    def saved(self) -> str:
        """What is saved of each tensor, in words."""
        kinds = [*(["elements"] * self.tensors), *(["statistics"] * self.statistics)]
        return " and ".join(kinds) or "nothing"


class Severity(StrEnum):
    """What a finding in a configuration means for the job."""

    REFUSED = "refused"
    """The job ends with an error, or dumps nothing."""
    WARNING = "warning"
    """Something is ignored, or is not what it seems."""


@dataclass(frozen=True, slots=True)
class ConfigFinding:
    """Something wrong in a configuration."""

    severity: Severity
    key: str
    """The key that it is about."""
    message: str
    source: str
    """The URL of the document or source file that says so."""

    def __str__(self) -> str:
        return f"{self.key}: {self.message}"


@dataclass(frozen=True, slots=True)
class RequestedOperator:
    """An operator that the next dump is to hold."""

    net: str
    graph: str
    op_type: str
    op_name: str
    """As the store has it."""
    full_name: str = ""
    """As the framework spells it; "" if that is not known."""


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """What the next dump is to hold."""

    operators: tuple[RequestedOperator, ...]
    """The most important one first."""
    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    job_ranks: tuple[int, ...]
    """All ranks of which anything is known."""
    directory: str
    """Where the dump is to go."""
    version: str = ""
    """The version of the dump system; "" if that is not known."""
    device: str = ""
    """`CPU`, `GPU` or `Ascend`; "" if that is not known."""
    former: Mapping[str, Any] = field(default_factory=dict)
    """The configuration of the dump in the store; empty if it is not there."""
    level: str = ""
    """For msProbe: the level of the dump in the store."""

    @property
    def version_numbers(self) -> tuple[int, ...]:
        """The version as numbers, such as (2, 10, 0); empty if it is not known."""
        return version_numbers(self.version)


@dataclass(frozen=True, slots=True)
class WrittenConfig:
    """The configuration of the next dump."""

    system: str
    file_name: str
    """How such a file is usually called."""
    text: str
    use: str
    """How the job is given it, in one sentence."""
    ranks: tuple[int, ...]
    """The ranks that will dump: more than was asked for if the system cannot choose."""
    steps: tuple[int, ...]
    """The steps that will be dumped, likewise."""
    notes: tuple[str, ...] = ()
    """What it cannot express."""


def version_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version; empty if there are none.

    >>> version_numbers("2.7.0rc1")
    (2, 7, 0)
    """
    numbers = re.match(r"\d{1,9}(?:\.\d{1,9})*", text)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()


def flatten(name: str) -> str:
    """Return a name as file names have it.

    >>> flatten("Default/net/Log-op0")
    'Default_net_Log-op0'
    """
    return _REPLACED.sub("_", name)
