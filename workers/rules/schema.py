"""What a file of rules may say: one pydantic model for each kind of rule.

To add a kind, add its model here (its fields, and by its base class what it looks at), and a function that
evaluates it: in `workers.rules.step`, or in `series_kinds`, `replicas` or `recomputed` of `ingest.findings`.

Names and meanings of thresholds follow MindSpore Insight's watchpoints (`max_gt` fires if the maximum is
greater), so that its users recognize them.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import xxhash
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from workers.arrays.dtypes import format_named
from workers.arrays.filter import Filter
from workers.arrays.statistics import FIELDS
from workers.errors import UsageError
from workers.host.yaml_file import YamlFile, parse, read_text
from workers.rules.names import REGEX, matching, parse_range
from workers.rules.step import COLUMNS
from workers.rules.values import Parameter, Rule, RuleSet, Scope, Selector
from workers.store.consolidated.blocks import BLOCK_COLUMNS
from workers.store.sketch_names import is_sketch_column
from workers.store.tables import NUMBERS

#: The largest number of findings of a rule in one step that may be stored.
MAX_LIMIT = 10_000

Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Positive: TypeAlias = Annotated[float, Field(allow_inf_nan=False, gt=0)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]


def _patterns(value: Any) -> Any:
    """Return patterns, of which a single one may be given as text, after checking regular expressions."""
    patterns = (value,) if isinstance(value, str) else value
    for pattern in patterns if isinstance(patterns, list | tuple) else ():
        if isinstance(pattern, str) and pattern.startswith(REGEX):
            try:
                re.compile(pattern.removeprefix(REGEX))
            except re.error as exc:
                raise ValueError(f"{pattern!r} is not a valid regular expression: {exc}") from exc
    return patterns


def _spans(value: Any) -> Any:
    spans = []
    for text in value if isinstance(value, list | tuple) else str(value).split(","):
        span = text if isinstance(text, tuple) else parse_range(str(text))
        if span is None:
            raise ValueError(f"must be ranks such as 3, 0-7 or [0, 2, 8-15], got {text!r}")
        spans.append(span)
    return tuple(spans)


Patterns: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_patterns)]
Ranks: TypeAlias = Annotated[tuple[tuple[int, int], ...], BeforeValidator(_spans)]
#: The columns that are numbers, besides the columns of sketches. All others are text.
_NUMBERS = frozenset([*FIELDS, *NUMBERS, "rank", "step", "copy"])
#: By kind, in the order of the documentation. Every model that gives its kind is in it.
MODELS: dict[str, type[BaseRule]] = {}


class BaseRule(BaseModel):
    """The fields of every rule."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
    """Lower case letters, digits and `_`: it is a label of metrics."""
    kind: str
    """One of the kinds. May be left out to change a built-in rule."""
    description: str = ""
    """What a finding means."""
    source: str = ""
    """Where definition and threshold come from."""
    severity: Literal["info", "warning", "critical"] = "warning"
    """`info`, `warning` (default) or `critical`."""
    enabled: bool = True
    """`false` switches the rule off."""
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 1000
    """How many findings of a step and rank are stored; if the rule looks at several steps or ranks, of a
    step, equally many of each rank. Further ones are only counted."""
    include: Patterns = ()
    """Patterns over `Tensor.name`: globs, or `re:` and a regular expression that is searched. None: all."""
    exclude: Patterns = ()
    """Patterns over the name. No tensor that matches one is examined."""
    op_type: Patterns = ()
    """Patterns over the type of the operator."""
    exclude_op_type: Patterns = ()
    """Patterns over the type of the operator; matching tensors are not examined."""
    io: Patterns = ()
    """Patterns over `input`, `output`, ..."""
    graph: Patterns = ()
    """Patterns over the graph."""
    rank: Ranks = ()
    """Ranks, such as 0-7 or [0, 2, 8-15]. None: all."""
    where: str = ""
    """A further condition on the tensor as it is in the step, in the form of `find --where`."""

    scope: ClassVar[Scope] = Scope.STEPS
    columns: ClassVar[frozenset[str]] = BLOCK_COLUMNS
    """The names that `where` may use."""
    _selects: ClassVar[tuple[str, ...]] = ("include", "exclude", "op_type", "exclude_op_type", "io", "graph")

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for kind in get_args(cls.model_fields["kind"].annotation):
            MODELS[kind] = cls

    @field_validator("where")
    @classmethod
    def _is_condition(cls, text: str) -> str:
        """Evaluate the condition on one element of each column: a wrong one must not wait for a step."""
        if text:
            try:
                condition = Filter(text, cls.columns, said_by="")
                condition.evaluate({name: _example(name) for name in condition.names})
            except UsageError as exc:
                raise ValueError(". ".join(filter(None, (exc.message, exc.hint)))) from exc
        return text

    @classmethod
    def own_fields(cls) -> dict[str, FieldInfo]:
        """Return the fields of this kind alone."""
        return {name: field for name, field in cls.model_fields.items() if name not in COMMON_FIELDS}

    def compiled(self) -> Rule:
        """Return the value that is evaluated."""
        selector = Selector(
            **{name: getattr(self, name) for name in self._selects},
            dtype=getattr(self, "dtype", ()),
            rank=self.rank,
        )
        return Rule(
            self.name,
            self.kind,
            self.severity,
            selector,
            tuple((name, self._parameter(name)) for name in type(self).own_fields()),
            self.where,
            self.limit,
            self.description,
            self.scope,
        )

    def _parameter(self, name: str) -> Parameter:
        value = getattr(self, name)
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _example(column: str) -> npt.NDArray[Any]:
    is_number = column in _NUMBERS or is_sketch_column(column)
    return np.array([1.0]) if is_number else np.array(["text"], object)


class StepRule(BaseRule):
    """A rule that looks at one step of one rank, and can choose by everything in its index."""

    dtype: Patterns = ()
    """Patterns over the element type."""

    scope: ClassVar[Scope] = Scope.STEP
    columns: ClassVar[frozenset[str]] = COLUMNS


class NotFinite(StepRule):
    """Elements that are NaN or infinite."""

    kind: Literal["not_finite"]
    of: tuple[Literal["nan", "pos_inf", "neg_inf"], ...] = ("nan", "pos_inf", "neg_inf")
    """What counts."""
    count_gt: Annotated[int, Field(ge=0)] = 0
    """Fires if there are more than this many."""


class BoundedRule(StepRule):
    """Fires if any of the given thresholds is exceeded."""

    @model_validator(mode="after")
    def _has_a_bound(self) -> BoundedRule:
        bounds = [
            name for name in type(self).own_fields() if name.rpartition("_")[2] in ("gt", "ge", "lt", "le")
        ]
        if all(getattr(self, name) is None for name in bounds):
            raise ValueError(f"needs at least one of {', '.join(bounds)}")
        return self


class Headroom(BoundedRule):
    """Largest magnitude as a share of the largest finite number of the type."""

    kind: Literal["headroom"]
    share_gt: Share | None = None
    share_ge: Share | None = None


class TooLarge(BoundedRule):
    """A statistic is greater than it may be. `rms` is the root mean square: no less than the mean of |x|."""

    kind: Literal["too_large"]
    rms_gt: Number | None = None
    abs_max_gt: Number | None = None
    max_gt: Number | None = None
    min_gt: Number | None = None
    mean_gt: Number | None = None
    l2_norm_gt: Number | None = None


class TooSmall(BoundedRule):
    """A statistic is less than it may be."""

    kind: Literal["too_small"]
    rms_lt: Number | None = None
    abs_max_lt: Number | None = None
    max_lt: Number | None = None
    min_lt: Number | None = None
    mean_lt: Number | None = None
    l2_norm_lt: Number | None = None


class Range(BoundedRule):
    """Elements beyond a range, or a range too narrow or too wide. `spread` is maximum minus minimum."""

    kind: Literal["range"]
    min_ge: Number | None = None
    """Fires if the minimum is below."""
    max_le: Number | None = None
    """Fires if the maximum is above."""
    spread_lt: Number | None = None
    spread_gt: Number | None = None


class Zeros(StepRule):
    """Share of elements that are zero."""

    kind: Literal["zeros"]
    share_ge: Share = 1.0
    elements_ge: Annotated[int, Field(ge=1)] = 1
    """Smaller tensors are skipped."""


class Disagreement(StepRule):
    """Statistics in the dump that differ from those of the elements."""

    kind: Literal["disagreement"]


class Overflow(StepRule):
    """An overflow that the hardware recorded."""

    kind: Literal["overflow"]


class BlackBoxRule(StepRule):
    """What made a black box save its steps: an exception, SIGTERM, a spike, a request, the death of a job."""

    kind: Literal["black_box"]


class Condition(StepRule):
    """The condition `where` alone."""

    kind: Literal["condition"]
    where: Annotated[str, Field(min_length=1)]


class Cast(BoundedRule):
    """What a cast to another format of numbers would lose, at least, from the histogram."""

    kind: Literal["cast"]
    format: Annotated[str, Field(min_length=1)]
    """float16, bfloat16, e4m3, e5m2, or bits and bias such as e4m3b11."""
    scaling: Literal["none", "current"] = "none"
    """`current`: the largest magnitude of the tensor becomes the largest number of the format."""
    overflow_gt: Share | None = None
    """Fires if a larger share of the elements becomes infinite or NaN."""
    underflow_gt: Share | None = None
    """Fires if a larger share of the elements becomes zero."""

    @field_validator("format")
    @classmethod
    def _is_a_format(cls, value: str) -> str:
        try:
            target = format_named(value)
        except UsageError as exc:
            raise ValueError(f"{exc.message}. {exc.hint}") from exc
        if target.block:
            raise ValueError(f"{value} has blocks, of which a histogram gives upper bounds only")
        return value


class Percentile(BoundedRule):
    """A percentile of the finite elements that is certainly beyond a bound, from the histogram."""

    kind: Literal["percentile"]
    percent: Annotated[float, Field(ge=0, le=100)]
    magnitude: bool = True
    """Of the magnitudes."""
    gt: Number | None = None
    lt: Number | None = None


Statistic: TypeAlias = Literal["l2_norm", "std", "mean", "min", "max"]


class Unchanged(BaseRule):
    """The same bytes in several steps in a row; the same statistics if only these were dumped."""

    kind: Literal["unchanged"]
    steps: Annotated[int, Field(ge=2, le=16)] = 3
    """In how many steps the tensor must be the same."""
    elements_ge: Annotated[int, Field(ge=1)] = 1


class NotUpdated(BaseRule):
    """A parameter that stays the same although its gradient is another one in each step, and not zero."""

    kind: Literal["not_updated"]
    steps: Annotated[int, Field(ge=3, le=32)] = 4
    """In how many steps it must be the same; twice as many and one if no parameter of the rank moves and
    steps may be parts of a batch."""


class NoGradient(BaseRule):
    """A parameter that has no gradient since some step, or only zeros in all, although its module runs."""

    kind: Literal["no_gradient"]
    steps: Annotated[int, Field(ge=1, le=16)] = 2
    """In how many steps it must have none."""


class Accumulated(BaseRule):
    """A gradient that holds that of the step before, which the optimizer has used."""

    kind: Literal["accumulated"]


class ModeChanged(BaseRule):
    """Dropout or batch normalisation that acts otherwise than in all steps before, in training."""

    kind: Literal["mode"]


class BadBatch(BaseRule):
    """An input of the model that is one value, in other units, that of the step before, or of another rank.

    As in no step before: a run that uses the same batch in each step is left alone.
    """

    kind: Literal["batch"]
    of: tuple[
        Literal["batch of one value", "bad values in a batch", "batch repeated", "same batch on two ranks"],
        ...,
    ] = (
        "batch of one value",
        "bad values in a batch",
        "batch repeated",
        "same batch on two ranks",
    )


class Change(BaseRule):
    """Change of a statistic from one step to the next, relative to its value before."""

    kind: Literal["change"]
    statistic: Statistic = "l2_norm"
    ratio_gt: Positive
    """Fires if |now - before| / (|before| + epsilon) is greater."""
    epsilon: Positive = 1e-9
    before_ge: Number = 0.0
    """Tensors whose statistic had a smaller magnitude are skipped."""
    times_gt: Annotated[float, Field(allow_inf_nan=False, ge=0)] = 0.0
    """Fires only if the change is also more than this many times the largest of the steps before."""
    history: Annotated[int, Field(ge=1, le=64)] = 8
    """How many steps before are considered for that."""
    least: Annotated[int, Field(ge=0, le=64)] = 0
    """How many changes before must be known, at least."""
    elements_ge: Annotated[int, Field(ge=1)] = 1


class Drift(BaseRule):
    """Change of the distribution of magnitudes from one step to the next, from the histograms.

    The distance is the Wasserstein distance of the finite elements other than zero, in powers of two: 1 if
    all elements double. It is computed from the histograms, and rounded by at most 1e-4. As a histogram
    gives each magnitude to a factor of two, the exact distance of log2 of the magnitudes differs by at
    most 1, if all are in the range of float32; findings state these bounds.
    """

    kind: Literal["drift"]
    distance_gt: Positive
    elements_ge: Annotated[int, Field(ge=1)] = 1


class Outlier(BaseRule):
    """A statistic far from the history of its tensor, by its ratio to the median and its robust z-score."""

    kind: Literal["outlier"]
    statistic: Literal["l2_norm", "std"] = "l2_norm"
    direction: Literal["above", "below"] = "above"
    ratio_gt: Annotated[float, Field(allow_inf_nan=False, gt=1)]
    """Above: now / median; below: median / now."""
    z_gt: Number = 3.5
    """Of log2 of the statistic: 0.6745 (x - median) / MAD. Both must be exceeded."""
    history: Annotated[int, Field(ge=3, le=64)] = 16
    """How many steps before are considered."""
    least: Annotated[int, Field(ge=3, le=64)] = 5
    """How many of these must have the tensor, at least."""
    share_ge: Share = 0.0
    """Fires only if this share of the chosen tensors of a rank that can be compared fire at once."""

    @model_validator(mode="after")
    def _is_possible(self) -> Outlier:
        if self.least > self.history:
            raise ValueError(f"least is {self.least}, but history is only {self.history} steps")
        return self


class ReplicasRule(BaseRule):
    """A rule that compares the ranks of a step."""

    scope: ClassVar[Scope] = Scope.RANKS


class DivergenceRule(ReplicasRule):
    """Tensors on which replicas should agree and do not, as `dump-ingest divergence` finds them."""

    kind: Literal["divergence"]


class MissingRule(ReplicasRule):
    """A step, an operator or a tensor that some ranks have and others do not."""

    kind: Literal["missing"]
    of: tuple[Literal["step", "operator", "tensor"], ...] = ("step", "operator", "tensor")


class AuditRule(BaseRule):
    """An output that does not follow from what its operator read, as `audit` finds it.

    Operators are chosen at random, in each step on another rank.
    """

    kind: Literal["audit"]
    share: Annotated[float, Field(gt=0, le=1)] = 0.01
    """What is recomputed in a step: operators whose elements are this share of those of the rank; one at
    least."""

    scope: ClassVar[Scope] = Scope.OPERATORS


#: Fields that are not of one kind alone.
COMMON_FIELDS = frozenset(StepRule.model_fields)
_ANY_RULE: Any = Annotated[reduce(or_, MODELS.values()), Field(discriminator="kind")]
#: Checks a rule against the model of its kind.
RULE: TypeAdapter[BaseRule] = TypeAdapter(_ANY_RULE)


def file_schema() -> dict[str, Any]:
    """Return the JSON schema of a file of rules. Rules that change a built-in one do not need a `kind`."""
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
                "description": "Whether the built-in rules apply as well.",
            },
            "rules": {"type": "array", "items": {"anyOf": [rule, changed]}},
        },
        "$defs": definitions,
    }


BUILTIN = Path(__file__).with_name("builtin.yml")
#: Raised when the same rules would find something else.
RULES_VERSION = 3
#: So that a wrong file name does not read a dump.
_MAX_NBYTES = 1024 * 1024
_MAX_RULES = 1000
_TOP = ("builtin", "rules")
_HINT = "`dump-ingest rules show` prints valid rules; docs/rules.md lists all kinds and fields."
_FILE_HINT = "Name a YAML file of rules, with --rules or the setting `rules`."


@dataclass(frozen=True, slots=True)
class LoadedRules:
    """Rules, and where each of them comes from."""

    rules: tuple[BaseRule, ...]
    """Includes those that are switched off."""
    origins: Mapping[str, str]
    """By name: `built-in`, or a file."""

    @property
    def enabled(self) -> RuleSet:
        """The rules that are evaluated."""
        return rule_set([rule for rule in self.rules if rule.enabled])


@dataclass(frozen=True, slots=True)
class _Entry:
    file: YamlFile
    number: int
    fields: dict[str, Any]

    def at(self, field: str = "") -> str:
        return self.file.at("rules", self.number, field)


def load_rules(path: str | Path | None = None) -> LoadedRules:
    """Return the built-in rules, with the changes and additions of a file.

    Raises:
        UsageError: the file cannot be read, or something in it is wrong; the message names the line.
    """
    built_in = _built_in()
    if path is None:
        return built_in
    keep_built_in, entries = _entries(_parsed(Path(path)))
    rules = {rule.name: rule for rule in built_in.rules} if keep_built_in else {}
    origins = dict.fromkeys(rules, "built-in")
    seen: dict[str, str] = {}
    for entry in entries:
        name = str(entry.fields.get("name"))
        if name in seen:
            raise _wrong(entry.at("name"), f"rule {name} is there already, at {seen[name]}")
        rule = _rule(entry, rules.get(name))
        seen[name] = entry.at("name")
        rules[rule.name] = rule
        origins[rule.name] = str(path)
    return LoadedRules(tuple(rules.values()), origins)


def rules_like(patterns: Iterable[str], names: Sequence[str]) -> set[str]:
    """Return the names of rules that names and globs choose.

    Raises:
        UsageError: a pattern chooses none of them; the hint lists names that are near.
    """
    return {names[place] for pattern in patterns for place in matching(pattern, names, "rule")}


def rule_set(rules: Iterable[BaseRule]) -> RuleSet:
    """Return rules as the value that is evaluated."""
    compiled = tuple(rule.compiled() for rule in sorted(rules, key=lambda rule: rule.name))
    definitions = [[rule.name, {**rule.to_dict(), "description": ""}] for rule in compiled]
    text = json.dumps([RULES_VERSION, *definitions], sort_keys=True)
    return RuleSet(compiled, xxhash.xxh3_64_hexdigest(text.encode()))


@cache
def _built_in() -> LoadedRules:
    _, entries = _entries(parse(BUILTIN.read_text("utf-8"), "built-in"))
    rules = tuple(_rule(entry) for entry in entries)
    return LoadedRules(rules, dict.fromkeys((rule.name for rule in rules), "built-in"))


def _parsed(path: Path) -> YamlFile:
    try:
        text = read_text(path, max_nbytes=_MAX_NBYTES, hint=_FILE_HINT)
    except UsageError as exc:
        raise UsageError(f"rules: {exc.message}", hint=exc.hint) from exc
    return parse(text, str(path), hint=_HINT)


def _entries(file: YamlFile) -> tuple[bool, list[_Entry]]:
    """Return whether the built-in rules apply as well, and the rules of a file.

    Raises:
        UsageError: the file does not have this form.
    """
    top = {} if file.value is None else _mapping(file.value, "a file of rules", file.at())
    for name in top:
        if name not in _TOP:
            raise _wrong(
                file.at(name), f"{name} is not known here{_near(name, _TOP)}", _allowed("The top", _TOP)
            )
    keep_built_in = top.get("builtin", True)
    if not isinstance(keep_built_in, bool):
        raise _wrong(file.at("builtin"), f"builtin must be true or false, got {keep_built_in!r}")
    rules = top.get("rules")
    if rules is None:
        return keep_built_in, []
    if not isinstance(rules, list):
        raise _wrong(file.at("rules"), "rules must be a list: each rule begins with `- name: ...`")
    if len(rules) > _MAX_RULES:
        raise _wrong(file.at("rules"), f"more than {_MAX_RULES} rules")
    return keep_built_in, [
        _Entry(file, number, _mapping(rule, "a rule", file.at("rules", number)))
        for number, rule in enumerate(rules)
    ]


def _mapping(value: Any, what: str, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(where, f"{what} must be `name: value` lines")
    return {str(name): entry for name, entry in value.items()}


def _rule(entry: _Entry, base: BaseRule | None = None) -> BaseRule:
    """Return a rule. Missing fields are taken from the built-in rule with the same name, if there is one."""
    fields = entry.fields
    if base is not None:
        if fields.get("kind", base.kind) != base.kind:
            raise _wrong(
                entry.at("kind"),
                f"rule {base.name} is built in, and its kind is {base.kind}",
                "Give yours another name, and switch this one off with `enabled: false`.",
            )
        fields = {**base.model_dump(), **fields}
    kind = fields.get("kind")
    if kind is None:
        name = f" {fields['name']}" if "name" in fields else ""
        raise _wrong(entry.at(), f"rule{name} has no kind", _allowed("kind", MODELS))
    if not isinstance(kind, str) or kind not in MODELS:
        message = f"{kind!r} is not a kind of rule{_near(kind, MODELS)}"
        raise _wrong(entry.at("kind"), message, _allowed("kind", MODELS))
    try:
        return RULE.validate_python(fields)
    except ValidationError as exc:
        raise _explained(exc, kind, entry) from exc


def _explained(error: ValidationError, kind: str, entry: _Entry) -> UsageError:
    """Return the first thing that is wrong with a rule, and what is allowed in its place."""
    first = error.errors(include_url=False)[0]
    # The place begins with the kind, by which the model was chosen.
    name = str(first["loc"][1]) if len(first["loc"]) > 1 else ""
    fields = MODELS[kind].model_fields
    if first["type"] == "extra_forbidden":
        hint = f"Fields of {kind}: {', '.join(fields)}."
        if name == "dtype" and MODELS[kind].scope is not Scope.STEP:
            hint = (
                f"dtype chooses among the tensors of one step; {kind} looks at {MODELS[kind].scope}. {hint}"
            )
        message = f"{name} is not a field of a rule of kind {kind}{_near(name, fields)}"
        return _wrong(entry.at(name), message, hint)
    if first["type"] == "missing":
        return _wrong(entry.at(), f"the rule has no {name}", _meaning(kind, name))
    message = first["msg"].removeprefix("Value error, ")
    got = "" if first["type"] == "value_error" else f", got {first['input']!r}"
    message = f"{name + ': ' if name else ''}{message[:1].lower()}{message[1:]}{got}"
    return _wrong(entry.at(name), message[:500], _meaning(kind, name))


def _meaning(kind: str, name: str) -> str:
    field = MODELS[kind].model_fields.get(name)
    return f"{name}: {field.description}" if field is not None and field.description else _HINT


def _near(wanted: object, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(wanted), list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _allowed(what: str, names: Iterable[str]) -> str:
    return f"{what} is one of {', '.join(names)}."


def _wrong(where: str, message: str, hint: str = _HINT) -> UsageError:
    return UsageError(f"{where}: {message}", hint=hint)
