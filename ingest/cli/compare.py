"""`dump-ingest compare`: two stores, runs, ranks, steps or dumps, tensor by tensor."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ingest.cli.common import (
    EXIT_DAMAGE,
    EXIT_DIFFERENT,
    ConfigOption,
    JsonOption,
    number,
    print_json,
    print_table,
    printable,
    say,
)
from ingest.cli.ingest import SchedulerOption

if TYPE_CHECKING:
    from ingest.questions.compare import ComparedTensor, Comparison

NAME = "compare"
_MAX_NAME = 100
#: Steps that the summary lists.
_MAX_STEPS = 24
_FIGURES = {
    "max abs": "max_abs",
    "max rel": "max_relative",
    "rel Euclid": "relative_euclidean",
    "cosine": "cosine",
    "in 1/1000": "within_1_per_mille",
}


def command(
    a: Annotated[
        str, typer.Argument(metavar="A", help="STORE, STORE@RANK, STORE@RANK,STEP, or a dump directory.")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The reference; the same.")],
    mapping: Annotated[
        Path | None,
        typer.Option(
            "--map", metavar="FILE", help="YAML: which name of A is which name of B.", readable=False
        ),
    ] = None,
    thresholds: Annotated[
        Path | None,
        typer.Option("--thresholds", "-t", metavar="FILE", help="YAML: how much may differ.", readable=False),
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Print the worst so many tensors.")] = 10,
    every: Annotated[
        bool, typer.Option("--all", help="Print all tensors, in order of execution; equal ones, too.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with all figures.", show_default=False)
    ] = None,
    include_partial: Annotated[
        bool, typer.Option("--include-partial", help="Compare steps that are not complete, too.")
    ] = False,
    ignore_unmatched: Annotated[
        bool, typer.Option("--ignore-unmatched", help="What is in one of the two alone is no difference.")
    ] = False,
    scheduler: SchedulerOption = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Dask worker processes of its own. Default: threads.", show_default=False),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Compare two steps, ranks, runs or dumps, tensor by tensor. B is the reference.

    Exits with 0 when every tensor is within its thresholds, with 5 when differences were found.

    [bold]dump-ingest compare run.zarr@0,2 run.zarr@1,2[/]      two ranks, in step 2
    [bold]dump-ingest compare new.zarr s3://b/old.zarr[/]       all ranks and steps
    [bold]dump-ingest compare run.zarr /data/dump[/]            a store, and what it was made of
    """
    from ingest.dispatch.cluster import Cluster
    from ingest.questions.compare import compare, load_mapping, load_thresholds
    from ingest.settings import load

    chosen = load(config, scheduler=scheduler, workers=workers).settings
    names = load_mapping(mapping) if mapping else None
    limits = load_thresholds(thresholds) if thresholds else None
    if html is not None:
        _check_writable(html)
    with ExitStack() as stack:
        is_distributed = scheduler is not None or workers is not None
        cluster = stack.enter_context(Cluster(chosen)) if is_distributed else None
        found = compare(
            a,
            b,
            mapping=names,
            thresholds=limits,
            include_partial=include_partial,
            ignore_unmatched=ignore_unmatched,
            keep_equal=every,
            client=cluster.connect if cluster else None,
            storage_options=chosen.store_options,
        )
    if html is not None:
        _write(html, found)
    if json:
        print_json(found.to_dict())
    else:
        _print(found, list(found.tensors) if every else [t for t in found.worst() if _is_odd(found, t)][:top])
    _talk(found, shown=top, every=every or json)
    if found.damaged:
        raise typer.Exit(EXIT_DAMAGE)
    if not found.is_within:
        raise typer.Exit(EXIT_DIFFERENT)


def _is_odd(found: Comparison, tensor: ComparedTensor) -> bool:
    """Whether a tensor is worth a line: all that are not equal, unmatched ones only where they matter."""
    from ingest.questions.compare.result import UNMATCHED, Verdict

    if tensor.verdict in UNMATCHED:
        return found.unmatched_matter
    return tensor.verdict not in {Verdict.IGNORED, Verdict.EQUAL}


def _print(found: Comparison, tensors: list[ComparedTensor]) -> None:
    from ingest.questions.compare import Verdict

    counts = found.counts
    shown = [verdict for verdict in Verdict if counts[verdict]]
    steps = [
        (_both(s.key_a.rank, s.key_b.rank), _both(s.key_a.step, s.key_b.step), s.counts) for s in found.steps
    ]
    rows = steps if len(steps) <= _MAX_STEPS else [s for s in steps if _worth(s[2])][:_MAX_STEPS]
    cells = [[rank, step, *(str(n.get(verdict, 0)) for verdict in shown)] for rank, step, n in rows]
    if len(steps) > 1:
        cells.append(["all", str(len(steps)), *(str(counts[verdict]) for verdict in shown)])
    names = [verdict.value for verdict in shown]
    print_table(("rank", "step", *names), cells, right=names)
    if tensors:
        typer.echo()
        _print_tensors(tensors)


def _worth(counts: object) -> bool:
    from collections.abc import Mapping

    from ingest.questions.compare.result import GOOD

    assert isinstance(counts, Mapping)  # noqa: S101  (for mypy)
    return any(n and verdict not in GOOD for verdict, n in counts.items())


def _print_tensors(tensors: list[ComparedTensor]) -> None:
    print_table(
        ("rank", "step", "verdict", "name", "dtype", "shape", *_FIGURES, "reason"),
        (
            (
                _both(t.key_a.rank, t.key_b.rank),
                _both(t.key_a.step, t.key_b.step),
                t.verdict.value,
                _name(t),
                _both(t.dtype_a, t.dtype_b),
                _both(_shape(t.shape_a), _shape(t.shape_b)),
                *(number(getattr(t.metrics, field) if t.metrics else None) for field in _FIGURES.values()),
                t.reason,
            )
            for t in tensors
        ),
        right=tuple(_FIGURES),
    )


def _talk(found: Comparison, *, shown: int, every: bool) -> None:
    for side, one in found.left_out:
        say(f"{side}: {one}", before="[yellow]left out:[/] ")
    for side, keys in (("A", found.only_a), ("B", found.only_b)):
        for key in keys[:_MAX_STEPS]:
            say(f"{key} is only in {side}", before="[yellow]missing:[/] ")
        if len(keys) > _MAX_STEPS:
            say(f"{len(keys) - _MAX_STEPS} more steps are only in {side}", before="[yellow]missing:[/] ")
    for note in found.notes:
        say(note, before="[yellow]note:[/] ")
    odd = sum(_is_odd(found, tensor) for tensor in found.tensors)
    if odd > shown and not every:
        say(f"{odd} tensors are not equal, the worst {shown} shown (--top N, --all, --html FILE)")
    if found.first:
        tensor, says = found.first.tensor, found.first.says
        where = f"step {tensor.key_a.step}, rank {tensor.key_a.rank}: {printable(tensor.name)}"
        say(f"{where}: {tensor.reason}" + (f"; {says}" if says else ""), before="[bold]first difference:[/] ")
    say(f"{found.verdict}", before=f"[bold {'green' if found.is_within else 'red'}]verdict:[/] ")


def _check_writable(path: Path) -> None:
    from workers.errors import UsageError

    if not path.absolute().parent.is_dir() or path.is_dir():
        raise UsageError(f"{path} cannot be written", hint="--html takes the name of a file.")


def _write(path: Path, found: Comparison) -> None:
    from ingest.questions.compare.html import to_html
    from workers.errors import UsageError

    try:
        path.write_text(to_html(found), "utf-8", errors="backslashreplace")
    except OSError as exc:
        raise UsageError(f"{path} cannot be written: {exc.strerror}") from exc


def _both(a: object, b: object) -> str:
    if a == b or not f"{a}" or not f"{b}":
        return f"{a}" or f"{b}"
    return f"{a} | {b}"


def _shape(shape: tuple[int, ...] | None) -> str:
    return "" if shape is None else "x".join(map(str, shape)) or "()"


def _name(tensor: ComparedTensor) -> str:
    names = [tensor.name_a or tensor.name_b]
    if tensor.name_a and tensor.name_b and tensor.name_a != tensor.name_b:
        names.append(tensor.name_b)
    return " | ".join(name if len(name) <= _MAX_NAME else f"{name[:48]}...{name[-49:]}" for name in names)
