"""How one process without Dask spends its time, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator

from bench.measure import Table, median, shown
from bench.setting import Setting
from bench.stages import CONVERT_PARTS, Stages, as_a_command, ingest_here, plans, split_convert
from workers.arrays.compiled import kernels


def measure(setting: Setting) -> Iterator[Table]:
    """Yield the medians by stage."""
    kernels.warm_up()
    runs: list[Stages] = []
    for _ in range(setting.rounds):
        stages = Stages()
        with as_a_command(), setting.target() as target:
            ingest_here(setting.load.directory, target, stages)
            for plan in plans(setting.load.directory, target, Stages()):
                split_convert(plan, stages)
        runs.append(stages)
    rows = tuple(
        (
            f"  {name}" if name in CONVERT_PARTS else name,
            shown(median([run.seconds[name] for run in runs])),
        )
        for name in runs[0].seconds
    )
    yield Table(
        "One process without Dask, large profile, by stage",
        ("stage", "s"),
        rows,
        note="Indented: the parts of convert, each on its own for all of the data.",
    )
