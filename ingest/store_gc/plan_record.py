"""The plan of `gc` as it stands in a file: typed records that are checked while they are decoded.

A plan file is not trusted: it can name what a plan names, and nothing else in the store.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias, cast

from msgspec import DecodeError, Meta, Struct, structs
from msgspec.json import Decoder

from ingest.store_gc.inventory import is_temporary
from ingest.store_gc.policy import GcPolicy
from workers.errors import UsageError
from workers.store.announcements import has_begun
from workers.store.packed import pool

What: TypeAlias = Literal["step", "tensors", "remains", "pool", "temporary", "upload", "announcement"]
Format: TypeAlias = Literal["dump-ingest gc plan 1"]
FORMAT: Format = "dump-ingest gc plan 1"
Natural: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
GenerationName: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}(?:-[0-9a-f]{16})?\Z")]
OptionalGenerationName: TypeAlias = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{32}(?:-[0-9a-f]{16})?)?\Z")]
_HINT = "Make the plan again: dump-ingest gc STORE ... --plan FILE"


class PolicyRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """The policy that a plan was made with."""

    older_than_s: float | None
    keep_last: int | None
    max_bytes: int | None
    tensors_around_anomalies: int | None
    keep_anomalous: bool
    grace_s: float
    ranks: tuple[Natural, ...] | None = None
    steps: tuple[Natural, ...] | None = None

    def __post_init__(self) -> None:
        """Check the ranges of the numbers."""
        try:
            self.policy()
        except UsageError as exc:
            raise ValueError(exc.message) from exc

    def policy(self) -> GcPolicy:
        """Return it as the value that gc works with."""
        return GcPolicy(**structs.asdict(self))


class ActionRecord(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="what"):
    """What every action in a plan file has; `what` says which of the seven kinds it is."""

    objects: Natural
    nbytes: Natural
    why: str
    upload: str = ""

    @property
    def what(self) -> What:
        """The kind of action."""
        return cast("What", self.__struct_config__.tag)


class RemoveStep(ActionRecord, frozen=True, kw_only=True, tag="step"):
    """A step goes with everything below it. Run files never do: `step` is not null."""

    rank: Natural
    step: Natural
    generation: GenerationName
    path: str


class RemoveTensors(RemoveStep, frozen=True, kw_only=True, tag="tensors"):
    """A step loses the payloads of its tensors."""


class RemoveRemains(ActionRecord, frozen=True, kw_only=True, tag="remains"):
    """A generation goes that no commit points to; "" stands for empty directories alone."""

    rank: Natural
    step: Natural | None
    generation: OptionalGenerationName
    path: str


class PathRecord(ActionRecord, frozen=True, kw_only=True):
    """What every action has that names one path in the store, and no step."""

    rank: None
    step: None
    generation: OptionalGenerationName
    path: str

    names: ClassVar[str]
    """What the path is that of."""

    def __post_init__(self) -> None:
        """Check the path."""
        if not self.is_valid:
            message = f"path {self.path!r} is not that of {self.names}"
            raise ValueError(message)

    @property
    def is_valid(self) -> bool:
        """Whether the path may stand in an action of this kind."""
        raise NotImplementedError


class RemovePooled(PathRecord, frozen=True, kw_only=True, tag="pool"):
    """An array in the pool of a step goes, to which no commit refers."""

    names: ClassVar = "an array in the pool of a step"

    @property
    def is_valid(self) -> bool:
        """Whether the path is that of an array in a pool."""
        return pool.step_of(self.path) is not None


class RemoveTemporary(PathRecord, frozen=True, kw_only=True, tag="temporary"):
    """A temporary object of a killed writer goes."""

    names: ClassVar = "a temporary object in the store"

    @property
    def is_valid(self) -> bool:
        """Whether the path is that of a temporary object, and inside of the store."""
        return is_temporary(self.path) and ".." not in self.path.split("/")


class AbortUpload(PathRecord, frozen=True, kw_only=True, tag="upload"):
    """An upload in parts ends that was never completed."""

    names: ClassVar = "an upload into the store"

    @property
    def is_valid(self) -> bool:
        """Whether the path is inside of the store."""
        return self.upload != "" and not {"..", ""} & set(self.path.split("/"))


class EndChange(PathRecord, frozen=True, kw_only=True, tag="announcement"):
    """A change of a commit ends that a killed writer has begun."""

    names: ClassVar = "an announcement in the store"

    @property
    def is_valid(self) -> bool:
        """Whether the path is that of the announcement of a beginning."""
        return has_begun(self.path)


class PlanRecord(Struct, frozen=True):
    """A plan file. It also holds totals, which are for people and are not read."""

    format: Format
    store: str
    made_at: str
    policy: PolicyRecord
    actions: tuple[
        RemoveStep | RemoveTensors | RemoveRemains | RemovePooled | RemoveTemporary | AbortUpload | EndChange,
        ...,
    ]
    notes: tuple[str, ...]
    store_bytes: Natural


_DECODER = Decoder(PlanRecord)


def decode_plan(text: str, where: str) -> PlanRecord:
    """Decode the content of a plan file.

    Raises:
        UsageError: it is not a plan; the message names `where` and the place in it, as `actions[3].step`.
    """
    try:
        return _DECODER.decode(text)
    except (DecodeError, RecursionError, UnicodeEncodeError) as exc:
        raise UsageError(f"{where} is not a gc plan: {_explain(exc)}", hint=_HINT) from exc


def _explain(error: Exception) -> str:
    """Put the place before the problem: msgspec ends its messages in " - at `$.actions[3].step`"."""
    problem, _, place = str(error).partition(" - at `$")
    name = place.strip("`.")
    return f"{name}: {problem}" if name else problem
