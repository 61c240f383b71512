r"""A layout map: how ranks hold tensors, where values and shapes leave that open.

placements:
  - {name: "dump.attn_q.*", a: "shard 2"}
  - {regex: 'Parameter\..*\.norm\.', a: replicated, b: replicated}

A placement is spelt as `compare` prints it, without the names of mesh dimensions: `replicated`, `shard 0`,
`partial sum`, `mean`, `zigzag 1`, `blocks 0`; with several dimensions, `replicated, shard 0`. The first pair
that fits a name counts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ingest.questions.name_pattern import NamePattern
from ingest.questions.placement.decide import Certainty, Decision, simplicity
from workers.arrays.sharded.placement import Held
from workers.host.yaml_file import load_model
from workers.rules.names import fits

_HINT = "A layout map holds `placements:`, a list of {name: GLOB, a: PLACEMENT, b: PLACEMENT}."
_WITH_AXIS = frozenset(held.value for held in (Held.SHARD, Held.STRIDED, Held.BLOCKS, Held.ZIGZAG))
_WITHOUT_AXIS = frozenset(
    {*(held.value for held in (Held.REPLICATED, Held.FLAT, Held.PARTIAL_SUM, Held.MEAN)), "whole"}
)


class MappedPlacement(NamePattern):
    """How ranks hold the tensors whose names fit."""

    a: str
    b: str | None = None

    @model_validator(mode="after")
    def _is_valid(self) -> Self:
        if (self.name is None) == (self.regex is None):
            message = "give either `name` or `regex`"
            raise ValueError(message)
        for text in filter(None, (self.a, self.b)):
            for part in text.split(", "):
                kind, _, axis = part.rpartition(" ")
                if part not in _WITHOUT_AXIS and not (kind in _WITH_AXIS and axis.isdigit()):
                    message = f"{part!r} is not a placement: replicated, shard 0, partial sum, mean, ..."
                    raise ValueError(message)
        self.refuse_bad_regex()
        return self

    def fits(self, name: str) -> bool:
        """Return whether it is about a tensor of this name.

        Raises:
            UsageError: its regular expression takes too long.
        """
        pattern = self._pattern
        if pattern is None:
            return fits(self.name or "")(name)
        return bool(pattern.search(name))


class LayoutMap(BaseModel):
    """A whole layout map."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    placements: list[MappedPlacement] = Field(default_factory=list)

    def apply(self, name: str, decision: Decision) -> Decision:
        """Return a decision as the map wants it; a way that the shapes do not allow leaves it open."""
        mapped = self._mapped(name)
        if mapped is None:
            return decision
        wanted = mapped.a if mapped.b is None else f"{mapped.a} | {mapped.b}"
        ways = sorted(
            (
                way
                for way in decision.search.ways
                if way.kinds[0] == mapped.a and mapped.b in (None, way.kinds[1])
            ),
            key=simplicity,
        )
        if not ways:
            text = f"the layout map says {wanted}, which the shapes of the pieces do not allow"
            return replace(decision, way=None, certainty=Certainty.OPEN, explanation=text, also=())
        text = f"the layout map says so; relative error {ways[0].error:.1e}"
        return replace(decision, way=ways[0], certainty=Certainty.MAPPED, explanation=text, also=())

    def placement_of(self, name: str) -> str:
        """Return the placement of a tensor of this name in A; "" if the map does not say.

        Raises:
            UsageError: a regular expression of the map takes too long.
        """
        mapped = self._mapped(name)
        return "" if mapped is None else mapped.a

    def _mapped(self, name: str) -> MappedPlacement | None:
        return next((mapped for mapped in self.placements if mapped.fits(name)), None)


def load_layout_map(path: Path) -> LayoutMap:
    """Read a layout map.

    Raises:
        UsageError: the file cannot be read, or something in it is not known; the message has the line.
    """
    return load_model(path, LayoutMap, _HINT)
