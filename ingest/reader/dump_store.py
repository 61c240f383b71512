"""The store as users have it: the catalog, and methods for everything that reads a single store."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from ingest.reader.catalog import Catalog, Damage, open_catalog
from ingest.reader.choice import Choice, format_ranges
from ingest.reader.mesh import Mesh
from ingest.reader.text import html_facts
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.commit import Commit

if TYPE_CHECKING:
    from ingest.reader.cube_conditions import ConsolidatedCubes
    from ingest.reader.snapshot import Snapshot
    from ingest.reader.step import Step
    from ingest.reader.tensor_filter import FilterFields
    from ingest.reader.verifying import StoreDamage
    from ingest.reader.zarr_view import TensorView


class DumpStore(Catalog):
    """All committed steps of a run, by rank and step. Steps that are not committed are not part of it.

    Nothing is read before it is needed. Each question reads only what it needs, and keeps it.
    """

    def _repr_html_(self) -> str:
        # Takes what `ranks` takes, one listing and one commit for each rank, and no commit of every step.
        steps = {key.step for key in self.listed() if key.step is not None}
        known = {"ranks": format_ranges(self.ranks), "steps": format_ranges(steps) or "-"}
        return html_facts(f"DumpStore {self.url}", known)

    def possible_steps(self, steps: Sequence[Step], conditions: Sequence[FilterFields], /) -> Sequence[Step]:
        """Return the steps that may have a tensor which fulfils one of these conditions.

        The consolidated view tells; see `ingest.reader.cube_conditions`.
        """
        from ingest.reader.cube_conditions import possible_steps  # deferred: as in `verify`

        return possible_steps(self.objects, steps, conditions)

    def _commits_of(self, keys: Sequence[StepKey]) -> tuple[dict[StepKey, Commit], dict[StepKey, str]]:
        """Return commits; from copies, where these are up to date and take fewer requests.

        Not in a directory: a commit is read as fast as a copy there, and a power cut may keep a commit and
        lose what was announced before it.
        """
        if self.objects.is_local:
            return self._read_commits(keys)
        from ingest.reader.cube_reader import read_copies  # deferred: as in `verify`

        copied = read_copies(self.objects, keys)
        commits, damaged = self._read_commits([key for key in keys if key not in copied])
        return copied | commits, damaged

    def snapshot(
        self, rank: Choice = None, step: Choice = None, *, include_partial: bool = False
    ) -> Snapshot:
        """Take a snapshot of those of these steps that are complete now; see `take_snapshot`."""
        from ingest.reader.snapshot import take_snapshot  # deferred: as in `verify`

        return take_snapshot(self, rank, step, include_partial=include_partial)

    def consolidated(self) -> ConsolidatedCubes:
        """Return the consolidated view: statistics and digests of all tensors over steps and ranks.

        Raises:
            UsageError: the store does not have one yet.
            DamagedStore: it is damaged.
        """
        from ingest.reader.cube_conditions import open_cubes

        cubes = open_cubes(self.objects)
        if cubes is None:
            raise UsageError(
                f"{self.url}: no consolidated view",
                hint=f"Create it: dump-ingest consolidate {shlex.quote(self.url)}",
            )
        return cubes

    def as_zarr(self, *, include_partial: bool = False) -> TensorView:
        """Return a read-only zarr-python store in which every tensor is an array of its own.

        `zarr.open_group(store.as_zarr(), mode="r")["rank_1/step_2/Log.Default_net-Log-op0/output.0"]` reads
        the ranges that are needed, and lists nothing. See `ingest.reader.zarr_view.TensorView`.

        Args:
            include_partial: also show steps with quarantined or missing files.
        """
        from ingest.reader.zarr_view import TensorView  # deferred: zarr takes 0.2 s to import

        return TensorView(self, include_partial=include_partial)

    def verify(self, rank: Choice = None, step: Choice = None) -> Iterator[Damage | StoreDamage]:
        """Read these steps, or all, and yield what is not as it was written.

        Without a choice, also checks what lies beside the steps: the groups of ranks, the consolidated view.

        Args:
            rank: one rank, or several; all if None.
            step: one step, or several; all, and the run files, if None.

        Raises:
            UsageError: one of the ranks or steps is not in the store.
        """
        # deferred: 0.04 s with all that the methods of this class import, and most questions need none of it
        from ingest.reader.verifying import verify, verify_copies, verify_surroundings

        if rank is None and step is None:
            surroundings = verify_surroundings(self.objects), verify_copies(self.objects)
            return itertools.chain(verify(self), *surroundings)
        damages: list[Damage] = []
        chosen = self.select(rank, step, damages=damages)
        return verify(self, [*(opened.key for opened in chosen), *(damage.key for damage in damages)])


def open_store(
    url: str | PathLike[str], *, mesh: str = "", timeout_s: float | None = None, **storage_options: Any
) -> DumpStore:
    """Open a store for reading. Takes one request.

    Args:
        url: a directory or any fsspec URL.
        mesh: how the ranks of the job are laid out, `tp=2,dp=4`, the last axis varies fastest; default: as
            the dump tells. See `Catalog.coordinates`.
        timeout_s: how long a request may go on without progress, in seconds; default: what the variable
            `DUMP_INGEST_STORE_TIMEOUT_S` says, else a minute.
        storage_options: passed to fsspec. Credentials are refused here: they come from the environment.

    Raises:
        UsageError: the URL does not hold a store, or `mesh` is not a mesh.
        StoreFormatError: a newer version of dump-ingest wrote it.
        StoreError: it cannot be reached.
    """
    told = Mesh.parse(mesh) if mesh else None
    return DumpStore(open_catalog(url, timeout_s=timeout_s, **storage_options).objects, mesh=told)
