"""What `dump-ingest export --unsharded` does: whole tensors, put together from the pieces of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

import ingest
from ingest.cli.exits import EXIT_DAMAGE, EXIT_PARTLY, exit_if_damaged, say_damaged
from ingest.cli.options import Conditions
from ingest.cli.printing import print_json, say
from ingest.reader.text import counted
from ingest.units import human_bytes
from workers.errors import UsageError

if TYPE_CHECKING:
    from ingest.reader.damage import Damage

#: Tensors that are named with the reason why they were not exported.
_MAX_SAID = 3


def export_whole(
    store: ingest.DumpStore,
    directory: str,
    step: list[int] | None,
    chosen: Conditions,
    placement: str,
    layout_map: Path | None,
    *,
    overwrite: bool,
    json: bool,
) -> None:
    """Write whole tensors, say what was not written and why, and exit with 3 or 4 in that case.

    Raises:
        UsageError: two ways of telling the layout are given, a file exists, or nothing is chosen.
        DamagedStore: an index is damaged.
    """
    damages: list[Damage] = []
    exported = ingest.export_unsharded(
        store,
        directory,
        step,
        placement=_placement_of(placement, layout_map),
        overwrite=overwrite,
        damages=damages,
        **chosen,
    )
    if json:
        print_json([whole.to_dict() for whole in exported])
    written = [whole for whole in exported if not whole.problem]
    failed = [whole for whole in exported if whole.problem]
    if not exported:
        say("no tensor fulfils the conditions", label="warning")
    _say_written(written, directory)
    _say_failed(failed)
    say_damaged(damages)
    exit_if_damaged(damages)
    if failed:
        raise typer.Exit(_exit_code(failed))


def _say_written(written: Sequence[ingest.ExportedWhole], directory: str) -> None:
    files = len({whole.path for whole in written})
    nbytes = human_bytes(sum(whole.nbytes for whole in written))
    say(f"{counted(len(written), 'tensor')}, {nbytes} in {counted(files, 'file')} in {directory}")


def _exit_code(failed: Sequence[ingest.ExportedWhole]) -> int:
    return EXIT_DAMAGE if any(whole.is_damaged for whole in failed) else EXIT_PARTLY


def _say_failed(failed: Sequence[ingest.ExportedWhole]) -> None:
    """Print which tensors were not written, once for each step and reason."""
    by_reason: dict[tuple[int, str], list[str]] = {}
    for whole in failed:
        by_reason.setdefault((whole.step, whole.problem), []).append(whole.name)
    for (step, problem), names in by_reason.items():
        shown = ", ".join(names[:_MAX_SAID]) + ", ..." * (len(names) > _MAX_SAID)
        which = f"{counted(len(names), 'tensor')} of step {step} ({shown})"
        say(f"{which}: {problem}", label="not exported", style="bold red")
    if any(not whole.is_damaged for whole in failed):
        say("  Name the layout with --placement or --layout-map; `dump-ingest layout` shows what is known.")


def _placement_of(placement: str, layout_map: Path | None) -> str | Callable[[str], str]:
    """Return the placement of all tensors, or a function that returns that of one.

    Raises:
        UsageError: both are given, or the map cannot be read.
    """
    if layout_map is None:
        return placement
    if placement:
        raise UsageError("--placement and --layout-map both say how ranks hold tensors", hint="Give one.")
    from ingest.questions.compare import load_layout_map  # deferred: numpy and zarr take 0.4 s to import

    return load_layout_map(layout_map).placement_of
