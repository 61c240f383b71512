"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

#: Of a rank; those of dumps have nine at most.
_MAX_DIGITS = 18


def _rank_or_place(text: str) -> int | str:
    """Read `3`, or a place in the mesh of the job, which only the store can resolve: `tp=0,dp=1`."""
    if "=" in text:
        return text
    if not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise typer.BadParameter(f"{text!r:.80} is neither a rank nor a place such as tp=0 or tp=0,dp=1.")
    return int(text)


ConfigOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="YAML file of settings (see `config schema`).",
        readable=False,  # `settings.load` has the better message
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

# The store.

StoreOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store", "-s", metavar="URL", help="The store: a directory, or a URL such as s3://bucket/run.zarr."
    ),
]
StoreArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="STORE",
        help="The store: a directory or URL. Default: the `store` setting.",
        show_default=False,
    ),
]

# Which steps, tensors and rules.

RankOption: TypeAlias = Annotated[
    list[int] | None,
    typer.Option("--rank", "-r", min=0, help="Only this rank; may be repeated.", show_default=False),
]
RanksOption: TypeAlias = Annotated[
    list[Any] | None,  # int | str: typer does not take unions
    typer.Option(
        "--rank",
        "-r",
        metavar="RANK|AXIS=N",
        help="Only this rank, or the ranks at a place of the mesh (tp=0,dp=1); may be repeated.",
        show_default=False,
        parser=_rank_or_place,
    ),
]
MeshOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="AXIS=SIZE,...",
        help="How ranks are laid out, such as tp=2,dp=4; the last axis varies fastest. Default: as told.",
        show_default=False,
    ),
]
StepOption: TypeAlias = Annotated[
    list[int] | None,
    typer.Option("--step", "-n", min=0, help="Only this step; may be repeated.", show_default=False),
]
PartialOption: TypeAlias = Annotated[
    bool, typer.Option("--include-partial", help="Include partial steps.", show_default=False)
]
RuleOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Only this rule, or the rules that match a glob; may be repeated."),
]

# Statistics over steps.

PatternArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="PATTERN", help="A glob over tensor names, such as '*Adam*.input.0'.", show_default=False
    ),
]
StatOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--stat",
        metavar="NAME",
        help="The statistic: l2_norm, max, std, nan_count, ... Default: l2_norm; mean for --role loss.",
        show_default=False,
    ),
]
PngOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--png", metavar="FILE", help="Write a plot to this PNG file.", show_default=False),
]
HtmlOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write a page with a plot and a table.", show_default=False),
]
CsvOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--csv", metavar="FILE", help="Write all values to this CSV file.", show_default=False),
]

# The service.

SchedulerOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Dask scheduler (tcp://host:8786) or scheduler file. Default: start own workers.",
    ),
]
WorkersOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="How many worker processes to start, without --scheduler.")
]
NiceOption: TypeAlias = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, max=19, help="Priority: 19 gives way to everything else. Default: 0."),
]
CpusOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="LIST", help="Processors to run on, such as 0-3,8. Default: all.")
]
CpuShareOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE", min=0, max=1, help="The share of these processors to use at most. Default: 1."
    ),
]
ReplaceOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--replace",
        help="Replace steps that came from another dump; `ingest` also restores steps that gc removed.",
        show_default=False,
    ),
]
ContinuesOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="DIRECTORY",
        help="Where this dump was before, or the job dumped before: its steps in the store are this dump's.",
        show_default=False,
    ),
]
RecheckOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--recheck",
        help="Read all committed dump files again, and take what was rewritten with its old size and time.",
        show_default=False,
    ),
]
RankMapOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE=RANK,...",
        help="The rank of each device id, for dumps whose paths name only devices.",
        show_default=False,
    ),
]
LayoutOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="PATTERN",
        help="How paths tell rank, step and name, for a tree that no layout covers; several: 'A; B'. "
        "`dump-ingest doctor` proposes one.",
        show_default=False,
    ),
]
DeviceLayoutOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--keep-device-layout", help="Store tensors in the accelerator's memory layout.", show_default=False
    ),
]
PoolOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--pool/--no-pool",
        help="Store tensors once that several ranks share, from the second consolidated step on.",
        show_default=False,
    ),
]
AfterCommitOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="keep|delete",
        help="What to do with committed dump files. They are read back and compared before they are deleted.",
    ),
]
KeepLastOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="With --after-commit delete: keep the newest N steps of each rank. Default: 1.",
    ),
]
KeepAnomalousOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--keep-anomalous",
        help="With --after-commit delete: keep steps with NaN, Inf, overflows or findings.",
        show_default=False,
    ),
]
ExpectedRanksOption: TypeAlias = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="How many ranks the run is to have; 0: any number."),
]
QuietOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", min=0, help="How long the last step must be unchanged to count as complete."
    ),
]
WatchersOption: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT,...",
        help="Where watchers serve their metrics: to show lag, backlog, disk, and what steps wait for.",
        show_default=False,
    ),
]
