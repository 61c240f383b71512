"""What may stand in a file of rules: one pydantic model for each kind.

Names and meanings of thresholds follow MindSpore Insight's watchpoints (`max_gt`: fires where the maximum is
greater than this), so that its users find them again.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator, model_validator

from workers.arrays.filter import Filter
from workers.errors import UsageError
from workers.ranges import parse_range
from workers.rules.select import REGEX
from workers.rules.step import COLUMNS
from workers.rules.values import Parameter, Rule, Selector

#: Findings of a rule in one step that may be stored at most.
MAX_LIMIT = 10_000

Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Positive: TypeAlias = Annotated[float, Field(allow_inf_nan=False, gt=0)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Patterns: TypeAlias = tuple[str, ...]


class BaseRule(BaseModel):
    """What every rule has."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
    """Lower case letters, digits and `_`: it is a label of metrics."""
    kind: str
    description: str = ""
    """What it means for who reads a finding."""
    source: str = ""
    """Where definition and threshold come from."""
    severity: Literal["info", "warning", "critical"] = "warning"
    enabled: bool = True
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 1000
    """Findings that are stored of one step and rank; what is beyond is counted."""
    include: Patterns = ()
    """Patterns over `Tensor.name`: globs, or `re:` and a regular expression that is searched. None: all."""
    exclude: Patterns = ()
    op_type: Patterns = ()
    exclude_op_type: Patterns = ()
    io: Patterns = ()
    graph: Patterns = ()
    rank: tuple[tuple[int, int], ...] = ()
    """Ranks, such as 0-7 or [0, 2, 8-15]. None: all."""

    _selects: ClassVar[tuple[str, ...]] = ("include", "exclude", "op_type", "exclude_op_type", "io", "graph")

    @field_validator("include", "exclude", "op_type", "exclude_op_type", "io", "graph", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return _patterns(value)

    @field_validator("rank", mode="before")
    @classmethod
    def _spans(cls, value: Any) -> Any:
        texts = value if isinstance(value, list | tuple) else str(value).split(",")
        spans = []
        for text in texts:
            if isinstance(text, tuple):
                spans.append(text)
                continue
            ranks = None if isinstance(text, bool) else parse_range(str(text))
            if ranks is None:
                message = f"must be ranks such as 3, 0-7 or [0, 2, 8-15], got {text!r}"
                raise ValueError(message)
            spans.append(ranks)
        return tuple(spans)

    def compiled(self) -> Rule:
        """Return it as the value that workers evaluate."""
        selector = Selector(
            **{name: getattr(self, name) for name in self._selects},
            dtype=getattr(self, "dtype", ()),
            rank=self.rank,
        )
        own = [name for name in type(self).model_fields if name not in COMMON_FIELDS]
        return Rule(
            self.name,
            self.kind,
            self.severity,
            selector,
            tuple((name, self._parameter(name)) for name in own),
            getattr(self, "where", ""),
            self.limit,
            self.description,
        )

    def _parameter(self, name: str) -> Parameter:
        value = getattr(self, name)
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _patterns(value: Any) -> Any:
    patterns = (value,) if isinstance(value, str) else value
    for one in patterns if isinstance(patterns, list | tuple) else ():
        if isinstance(one, str) and one.startswith(REGEX):
            try:
                re.compile(one.removeprefix(REGEX))
            except re.error as exc:
                message = f"{one!r} is no regular expression: {exc}"
                raise ValueError(message) from exc
    return patterns


class _StepRule(BaseRule):
    """What looks at one step of one rank has the whole index to choose by."""

    dtype: Patterns = ()
    """Patterns over the element type."""
    where: str = ""
    """A condition beside, as `find --where` takes it."""

    @field_validator("dtype", mode="before")
    @classmethod
    def _one_or_many_dtypes(cls, value: Any) -> Any:
        return _patterns(value)

    @field_validator("where")
    @classmethod
    def _is_condition(cls, value: str) -> str:
        if value:
            try:
                Filter(value, COLUMNS, said_by="where")
            except UsageError as exc:
                raise ValueError(exc.message) from exc
        return value


class NotFinite(_StepRule):
    """Elements that are NaN or infinite."""

    kind: Literal["not_finite"]
    of: tuple[Literal["nan", "pos_inf", "neg_inf"], ...] = ("nan", "pos_inf", "neg_inf")
    """What counts."""
    count_gt: Annotated[int, Field(ge=0)] = 0
    """Fires where there are more than this many."""


class _Bounded(_StepRule):
    """Fires where any threshold that is given is exceeded."""

    @model_validator(mode="after")
    def _has_a_bound(self) -> _Bounded:
        bounds = [name for name in type(self).model_fields if name not in COMMON_FIELDS]
        if all(getattr(self, name) is None for name in bounds):
            message = f"needs at least one of {', '.join(bounds)}"
            raise ValueError(message)
        return self


class Headroom(_Bounded):
    """Largest magnitude as a share of the largest finite number of the type."""

    kind: Literal["headroom"]
    share_gt: Share | None = None
    share_ge: Share | None = None


class TooLarge(_Bounded):
    """A statistic is greater than it may be. `rms` is the root mean square: no less than the mean of |x|."""

    kind: Literal["too_large"]
    rms_gt: Number | None = None
    abs_max_gt: Number | None = None
    max_gt: Number | None = None
    min_gt: Number | None = None
    mean_gt: Number | None = None
    l2_norm_gt: Number | None = None


class TooSmall(_Bounded):
    """A statistic is less than it may be."""

    kind: Literal["too_small"]
    rms_lt: Number | None = None
    abs_max_lt: Number | None = None
    max_lt: Number | None = None
    min_lt: Number | None = None
    mean_lt: Number | None = None
    l2_norm_lt: Number | None = None


class Range(_Bounded):
    """Elements beyond a range, or a range too narrow or too wide. `spread` is maximum minus minimum."""

    kind: Literal["range"]
    min_ge: Number | None = None
    """Fires where the minimum is below."""
    max_le: Number | None = None
    """Fires where the maximum is above."""
    spread_lt: Number | None = None
    spread_gt: Number | None = None


class Zeros(_StepRule):
    """Share of elements that are zero."""

    kind: Literal["zeros"]
    share_ge: Share = 1.0
    elements_ge: Annotated[int, Field(ge=1)] = 1
    """Smaller tensors are not looked at."""


class Disagreement(_StepRule):
    """Statistics that the dump gives and that are not those of the elements."""

    kind: Literal["disagreement"]


class Overflow(_StepRule):
    """An overflow that the hardware recorded."""

    kind: Literal["overflow"]


class Condition(_StepRule):
    """The condition `where` alone."""

    kind: Literal["condition"]
    where: Annotated[str, Field(min_length=1)]


Statistic: TypeAlias = Literal["l2_norm", "std", "mean", "min", "max"]


class Unchanged(BaseRule):
    """The same bytes in several steps in a row; the same statistics, where only these were dumped."""

    kind: Literal["unchanged"]
    steps: Annotated[int, Field(ge=2, le=16)] = 3
    """In how many steps it must be the same."""
    elements_ge: Annotated[int, Field(ge=1)] = 1


class Change(BaseRule):
    """Change of a statistic from one step to the next, as a share of what it was."""

    kind: Literal["change"]
    statistic: Statistic = "l2_norm"
    ratio_gt: Positive
    """Fires where |now - before| / (|before| + epsilon) is greater."""
    epsilon: Positive = 1e-9
    before_ge: Number = 0.0
    """Not looked at where the magnitude was less than this."""
    elements_ge: Annotated[int, Field(ge=1)] = 1


class Outlier(BaseRule):
    """A statistic against the history of the same tensor: by ratio to the median, and by robust z-score."""

    kind: Literal["outlier"]
    statistic: Literal["l2_norm", "std"] = "l2_norm"
    direction: Literal["above", "below"] = "above"
    ratio_gt: Annotated[float, Field(allow_inf_nan=False, gt=1)]
    """Above: now / median; below: median / now."""
    z_gt: Number = 3.5
    """Of log2 of the statistic: 0.6745 (x - median) / MAD. Both must be exceeded."""
    history: Annotated[int, Field(ge=3, le=64)] = 16
    """Steps before that are looked at."""
    least: Annotated[int, Field(ge=3, le=64)] = 5
    """Of which at least so many must have the tensor."""

    @model_validator(mode="after")
    def _is_possible(self) -> Outlier:
        if self.least > self.history:
            message = f"least is {self.least}, but history is only {self.history} steps"
            raise ValueError(message)
        return self


class DivergenceRule(BaseRule):
    """Tensors that replicas should agree on and do not, as `dump-ingest divergence` finds them."""

    kind: Literal["divergence"]


class MissingRule(BaseRule):
    """What some ranks have and others have not: a step, an operator, a tensor."""

    kind: Literal["missing"]
    of: tuple[Literal["step", "operator", "tensor"], ...] = ("step", "operator", "tensor")


AnyRule: TypeAlias = (
    NotFinite
    | Headroom
    | TooLarge
    | TooSmall
    | Range
    | Zeros
    | Disagreement
    | Overflow
    | Condition
    | Unchanged
    | Change
    | Outlier
    | DivergenceRule
    | MissingRule
)
MODELS: dict[str, type[BaseRule]] = {
    model.model_fields["kind"].annotation.__args__[0]: model for model in AnyRule.__args__
}
#: Fields that no kind has of its own.
COMMON_FIELDS = frozenset([*_StepRule.model_fields])
RULE: TypeAdapter[AnyRule] = TypeAdapter(Annotated[AnyRule, Field(discriminator="kind")])


def file_schema() -> dict[str, Any]:
    """Return the JSON schema of a file of rules. A rule that changes a built-in one needs no `kind`."""
    rule = RULE.json_schema(ref_template="#/$defs/{model}")
    definitions = rule.pop("$defs")
    changed = {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
        "not": {"required": ["kind"]},
        "description": "Changes the built-in rule of this name.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Anomaly rules of dump-ingest",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "builtin": {
                "type": "boolean",
                "default": True,
                "description": "Whether the built-in rules stay.",
            },
            "rules": {"type": "array", "items": {"anyOf": [rule, changed]}},
        },
        "$defs": definitions,
    }
