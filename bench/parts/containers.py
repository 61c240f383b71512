"""Ingesting tensors in files of torch.save and of safetensors, against the same tensors as npy.

All dumps are in memory if there is a tmpfs, and all contenders take turns. The garbage collector looks as
seldom as in a command: the more objects a plan has, the more often it would look at them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from distributed import Client

from bench.load import DECLARED, build_alike, build_as
from bench.measure import Measure, in_turns, seconds
from bench.parts.copying import copy
from bench.setting import Setting, ingest, workers
from bench.stages import as_a_command

#: What is measured, with the words for it.
_CONTAINERS = {"pt": "as .pt", "sglang": "as .pt of SGLang", "safetensors": "as safetensors"}
#: How fast each is at least, against npy.
_OF_NPY = 0.8


def measure(setting: Setting) -> Iterator[Measure]:
    """Yield times of many small files, then of the large profile, also against `cp -r`."""
    with workers() as client:
        for size in (1024, 8192):
            yield from _small(setting, client, 1_000 if setting.quick else 10_000, size)
        yield from _large(setting, client)


def _small(setting: Setting, client: Client, files: int, size: int) -> Iterator[Measure]:
    with setting.target(setting.fast) as above:
        dumps = {suffix: above / suffix for suffix in ("npy", *_CONTAINERS)}
        for suffix, dump in dumps.items():
            build_alike(dump, files=files, size=size, suffix=suffix)
        _ingest(setting, client, dumps["npy"])  # warm-up, not measured
        times = in_turns(
            setting.rounds,
            {suffix: partial(_ingest, setting, client, dump) for suffix, dump in dumps.items()},
        )
    yield from _against_npy(f"{files} tensors of {4 * size} bytes", times)


def _large(setting: Setting, client: Client) -> Iterator[Measure]:
    with setting.target(setting.fast) as above:
        dumps = {suffix: above / suffix for suffix in ("npy", *_CONTAINERS)}
        above.mkdir()
        copy(setting.load.directory, dumps["npy"])
        for suffix in _CONTAINERS:
            build_as(setting.load, dumps[suffix], suffix)
        # Not measured: what uses memory of the machine for the first time takes longer.
        _copy(setting, dumps["npy"])
        _ingest(setting, client, dumps["npy"])
        times = in_turns(
            setting.rounds,
            {
                f"{contender} {suffix}".strip(): partial(run, dump)
                for suffix, dump in dumps.items()
                for contender, run in (
                    ("copy", partial(_copy, setting)),
                    ("", partial(_ingest, setting, client)),
                )
            },
        )
    yield from _against_npy("the large profile", times)
    for suffix, words in {"npy": "as npy", **_CONTAINERS}.items():
        yield Measure(f"the large profile, {words}", "cp -r", "s", times[suffix], times[f"copy {suffix}"])


def _against_npy(what: str, times: dict[str, tuple[float, ...]]) -> Iterator[Measure]:
    for suffix, words in _CONTAINERS.items():
        yield Measure(f"{what}, {words}", "the same as npy", "s", times[suffix], times["npy"], floor=_OF_NPY)


def _ingest(setting: Setting, client: Client, dump: Path) -> float:
    layout = DECLARED if dump.name == "safetensors" else ""
    with as_a_command(), setting.target(setting.fast) as target:
        return seconds(lambda: ingest(client, dump, target, layout=layout))


def _copy(setting: Setting, dump: Path) -> float:
    with setting.target(setting.fast) as target:
        return seconds(lambda: copy(dump, target))
