"""What the metadata of the cubes says about them: how long the axes are, and what is being written."""

from __future__ import annotations

import msgspec

from workers.errors import DamagedStore
from workers.store import metadata
from workers.store.consolidated.cubes import (
    CUBES_VERSION,
    GROUP,
    KEY_FIELDS,
    REBUILD_HINT,
    WITH_CUBES_BY_TENSOR,
    CubeGrid,
    CubeLayouts,
    Length,
)
from workers.store.model import Count

#: What this version reads and writes.
_KNOWN_VERSIONS = (1, 2, 3, 4)
#: No table of (step, rank) is larger: it takes half a GiB.
_MAX_TABLE = 1 << 26


class CubeState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the metadata of the cubes says about them: how long the axes are, and what is being written.

    The fields are in the order in which they are written.
    """

    epoch: str
    """Changes when the cubes are made again."""
    revision: Count
    """How often the metadata was written."""
    rewrites: Count
    """How often a writer began to write steps again that were in the cubes."""
    rewriting: tuple[Length, ...]
    """Places of the steps that are being written again: nobody may trust what the cubes hold of them."""
    grid: CubeGrid
    steps: Length = 0
    ranks: Length = 0
    tensors: Length = 0
    consolidated_at: str = ""
    """When the metadata was written, ISO 8601."""
    version: int = CUBES_VERSION
    uncut: tuple[Length, ...] = ()
    """Full blocks of steps that the cubes by tensor do not hold, or not as they are now. Ascending."""

    @property
    def full_blocks(self) -> int:
        """How many blocks of steps are full."""
        return self.steps // self.grid.steps

    @property
    def has_cubes_by_tensor(self) -> bool:
        """Whether the cubes are written once more, cut along the tensors."""
        return self.version >= WITH_CUBES_BY_TENSOR

    def is_cut(self, block: int) -> bool:
        """Return whether the cubes by tensor hold a block of steps."""
        return self.has_cubes_by_tensor and block < self.full_blocks and block not in self.uncut

    @property
    def is_possible(self) -> bool:
        """Whether the lengths fit each other, and the tables of (step, rank) fit into memory."""
        return (
            self.grid.is_possible
            and self.steps * self.ranks <= _MAX_TABLE
            and max(self.rewriting, default=-1) < self.steps
            and max(self.uncut, default=-1) < self.full_blocks
        )

    def document(self) -> metadata.Document:
        """Return the metadata of the group, with that of all arrays in it."""
        layouts = CubeLayouts(self.grid, self.version)
        documents = layouts.documents(self.steps, self.ranks, self.tensors)
        attributes = msgspec.to_builtins(self)
        if not self.has_cubes_by_tensor:
            del attributes["uncut"]  # software of that time refuses fields that it does not know
        document = metadata.leaf(attributes, documents)
        # By this, xarray takes them for coordinates (CF conventions, section 5).
        document["attributes"]["coordinates"] = " ".join((*KEY_FIELDS, "name"))
        return document


class _Version(msgspec.Struct):
    version: int


_DECODE_VERSION = msgspec.json.Decoder(_Version).decode
_DECODE_STATE = msgspec.json.Decoder(CubeState).decode


def parse_state(data: bytes | None) -> CubeState | None:
    """Read the metadata of the cubes; None if there are none, or those of another version.

    Raises:
        DamagedStore: it is damaged.
    """
    if data is None:
        return None
    try:
        written = metadata.own_attributes(data)
        if _DECODE_VERSION(written).version not in _KNOWN_VERSIONS:
            return None
        state = _DECODE_STATE(written)
    except (ValueError, RecursionError) as exc:
        raise DamagedStore(f"{GROUP}/zarr.json is damaged: {exc}", hint=REBUILD_HINT) from exc
    if not state.is_possible:
        raise DamagedStore(f"{GROUP}/zarr.json has impossible lengths", hint=REBUILD_HINT)
    return state
