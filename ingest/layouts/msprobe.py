"""Family E: msProbe in Python, for PyTorch and MindSpore.

    step{step}/rank{rank}/        the global rank; `rank` alone in old releases, of one process
    step{step}/proc{pid}/         while there is no rank; renamed to rank{rank} when there is one
    step{step}/pid{pid}/          the same, of AclGraphDumper
    {graph|pynative}/step{step}/...    MindSpore with both modes in one job
        dump.json  stack.json  construct.json  [debug.json]
        dump_tensor_data/*.pt or *.npy

`dump.json` names every tensor, gives its statistics, and says in which file it is. It is written now and then
and at the end of a step, so there may be files that it does not know yet; AclGraphDumper writes none beside
tensors. Tensors in the NZ format, and those with too long a path, have an entry but no file.
(msProbe 26.2: `core/dump/service.py`, `core/dump/data_dump/json_writer.py`.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ingest.layouts.base import Description, Place, Problem, ReadSmall, System, TensorFile
from ingest.layouts.msprobe_json import NotMsProbe, Told, read_tensors
from ingest.layouts.msprobe_names import parse_tensor_name
from ingest.layouts.pattern import Pattern, parse
from workers.dump.formats.header import Container
from workers.dump.model import ReportedStatistics
from workers.model import SourceFile

_JSON = ("dump.json", "debug.json")
_TENSORS = "dump_tensor_data"
_CONTAINERS = {".npy": Container.NPY, ".pt": Container.PT}


class MsProbe:
    """The tree of msProbe's dumps from Python."""

    name = "msprobe"
    # Not `step3` alone, which may be anything.
    patterns: Sequence[Pattern] = tuple(
        parse(f"{mode}step{{step}}/{process}!")
        for mode in ("", "{mode:graph|pynative}/")
        for process in ("rank{rank}", "rank", "proc{pid}", "pid{pid}")
    )
    systems: Sequence[System] = (
        System(
            "msProbe, PyTorch",
            "step8/rank1",
            "pt, `dump.json` with statistics, `stack.json`, `construct.json`",
        ),
        System("msProbe, PyTorch, before a rank is known", "step8/proc4711", "the same"),
        System(
            "msProbe, MindSpore",
            "step8/rank1",
            "npy, `dump.json` with statistics, `stack.json`, `construct.json`",
        ),
        System("msProbe, MindSpore with `jit`", "graph/step8/rank1", "the same"),
        System("msProbe, AclGraphDumper", "step8/pid4711", "pt, `dump.json`"),
    )
    # Checkpoints are kept in directories of the same names.
    evidence = re.compile(
        r"(?:dump|debug|stack|construct)\.json|dump_tensor_data|dump_error_info\.log|.+\.(?:pt|npy)",
        re.DOTALL,
    )
    transient: Sequence[Pattern] = ()

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
        """Tell what the files of one process and step are; see `Layout.describe`."""
        mode = place.fields.get("mode", "")
        paths = {file.path for file in files}
        tensors = [file.path for file in files if _extension(file.path) in _CONTAINERS]
        directory = f"{place.path}/{_TENSORS}/"
        written = [path for name in _JSON if (path := f"{place.path}/{name}") in paths]
        if not written and not any(path.startswith(directory) for path in tensors):
            return Description()  # directories of these names, but not msProbe's: perhaps checkpoints
        read_all = _read_all(written, mode, read)
        named: dict[str, TensorFile] = {}
        missing: list[str] = []
        reported: list[ReportedStatistics] = []
        for source, told in read_all.told:
            path = f"{directory}{told.data_name}" if told.data_name else ""
            container = _CONTAINERS.get(_extension(path))
            if path and path not in paths:
                missing.append(told.data_name)
                path = ""
            elif container is not None:
                named.setdefault(path, TensorFile(told.name, container))
            reported.append(_reported(source, told, path))
        unlisted = [path for path in tensors if path not in named]
        for path in unlisted:
            stem = path.rpartition("/")[2].removesuffix(_extension(path))
            named[path] = TensorFile(parse_tensor_name(stem, graph=mode), _CONTAINERS[_extension(path)])
        problems = list(read_all.problems)
        unfinished = read_all.unfinished
        if written and missing:
            problems.append(
                Problem(
                    written[0],
                    f"names {len(missing)} files that are not there; the first is {missing[0]:.200}",
                    "msProbe writes no file for a tensor in the NZ format, and for too long a path.",
                )
            )
        if written and unlisted and not read_all.problems:
            problems.append(
                Problem(
                    written[0],
                    f"has no entry for {len(unlisted)} tensor files; the first is {unlisted[0]}",
                    "msProbe writes it late: the process was still running, or died. The names of the files "
                    "are used.",
                )
            )
            unfinished = unfinished or written[0]
        return Description(named, reported, problems, unfinished)


@dataclass(slots=True)
class _Read:
    """What the JSON files of one place tell."""

    told: list[tuple[str, Told]] = field(default_factory=list)
    """With the file that tells it."""
    problems: list[Problem] = field(default_factory=list)
    unfinished: str = ""


def _read_all(paths: Sequence[str], mode: str, read: ReadSmall) -> _Read:
    result = _Read()
    for path in paths:
        data = read(path)
        if data is None:
            result.problems.append(Problem(path, "names the tensors of its step, but cannot be read"))
            continue
        try:
            told = read_tensors(data, graph=mode, first=len(result.told))
        except NotMsProbe as exc:
            hint = "msProbe writes it anew now and then: the process was at work, or died."
            result.problems.append(Problem(path, str(exc), hint))
            result.unfinished = result.unfinished or path
            continue
        result.told += [(path, one) for one in told]
    return result


def _reported(source: str, told: Told, tensor: str) -> ReportedStatistics:
    return ReportedStatistics(
        source=source,
        name=told.name,
        dtype=told.dtype,
        shape=told.shape,
        statistics=told.statistics,
        tensor=tensor,
        checksum=told.checksum,
        digits=told.digits,
    )


def _extension(path: str) -> str:
    name = path.rpartition("/")[2]
    return f".{name.rpartition('.')[2]}" if "." in name else ""
