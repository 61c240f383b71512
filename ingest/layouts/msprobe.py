"""msProbe in Python, for PyTorch and MindSpore.

    step{step}/rank{rank}/        the global rank; `rank` alone in old releases, with one process
    step{step}/proc{pid}/         while the rank is not known; renamed to rank{rank} when it is
    step{step}/pid{pid}/          the same, of AclGraphDumper
    {graph|pynative}/step{step}/...    MindSpore with both modes in one job
    rank{rank}/                   what a user saved with 1.2 and 1.3, of all steps; has `debug.json`
        dump.json  stack.json  construct.json  [debug.json]
        dump_tensor_data/*.pt or *.npy

`dump.json` names every tensor, has its statistics, and says in which file it is. It is written from time to
time and at the end of a step, so there may be files that it does not contain yet; AclGraphDumper writes no
JSON next to tensors. Tensors in the NZ format, and those whose path is too long, have an entry but no file.
(msProbe 26.2: `core/dump/service.py`, `core/dump/data_dump/json_writer.py`.)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ingest.layouts.base import Description, Layout, Place, Problem, ReadSmall, System, TensorFile
from ingest.layouts.msprobe_json import JsonTensor, NotMsProbe, read_tensors
from ingest.layouts.msprobe_names import parse_tensor_name
from ingest.layouts.pattern import parse
from workers.dump.formats.header import Container
from workers.dump.model import ReportedStatistics
from workers.model import SourceFile, counted

_JSON = ("dump.json", "debug.json")
_TENSORS = "dump_tensor_data"
_CONTAINERS = {".npy": Container.NPY, ".pt": Container.PT}


class MsProbe(Layout):
    """The tree of msProbe's dumps from Python."""

    name = "msprobe"
    # `step3` alone proves nothing.
    patterns = tuple(
        parse(f"{mode}step{{step}}/{process}!")
        for mode in ("", "{mode:graph|pynative}/")
        for process in ("rank{rank}", "rank", "proc{pid}", "pid{pid}")
    )
    systems: ClassVar[Sequence[System]] = (
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
    # Directories of checkpoints have the same names.
    evidence = re.compile(
        r"(?:dump|debug|stack|construct)\.json|dump_tensor_data|dump_error_info\.log|.+\.(?:pt|npy)",
        re.DOTALL,
    )

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
        """Describe the files of one process and step; see `Layout.describe`."""
        mode = place.fields.get("mode", "")
        paths = {file.path for file in files}
        tensor_files = [file.path for file in files if _extension(file.path) in _CONTAINERS]
        directory = f"{place.path}/{_TENSORS}/"
        json_files = _json_files(place, paths)
        if not json_files and not _any_below(directory, tensor_files):
            return Description()  # another program's directories of the same names, perhaps of checkpoints
        content = _read_json_files(json_files, mode, read)
        named, reported, missing = _locate(content.tensors, directory, paths)
        unlisted = [path for path in tensor_files if path not in named]
        named |= {path: _named_by_path(path, mode) for path in unlisted}
        _check_complete(json_files, missing, unlisted, content)
        return Description(named, reported, content.problems, content.unfinished)


class MsProbeSaved(MsProbe):
    """What users of msProbe 1.2 and 1.3 saved by `PrecisionDebugger.save`, which told no step then."""

    name = "msprobe_saved"
    patterns = (parse("rank{rank}!"), parse("rank!"))
    implied = {"step": "0"}  # noqa: RUF012  (a ClassVar in `Layout`)
    systems = (System("msProbe 1.2 and 1.3, level `debug`", "rank1", "pt, `debug.json` with statistics"),)
    evidence = re.compile(r"debug\.json")
    needs_evidence = True


def _json_files(place: Place, paths: Collection[str]) -> list[str]:
    candidates = (f"{place.path}/{name}" for name in _JSON)
    return [path for path in candidates if path in paths]


@dataclass(slots=True)
class _JsonContent:
    """What the JSON files of one place say."""

    tensors: list[tuple[str, JsonTensor]] = field(default_factory=list)
    """Each with the path of its JSON file."""
    problems: list[Problem] = field(default_factory=list)
    unfinished: str = ""
    """A file that is still being written; "" if there is none."""


def _read_json_files(paths: Sequence[str], mode: str, read: ReadSmall) -> _JsonContent:
    content = _JsonContent()
    for path in paths:
        data = read(path)
        if data is None:
            content.problems.append(Problem(path, "names the tensors of its step, but cannot be read"))
            continue
        try:
            tensors = read_tensors(data, graph=mode, first=len(content.tensors))
        except NotMsProbe as exc:
            hint = "msProbe rewrites it from time to time: the process was still at work, or died."
            content.problems.append(Problem(path, str(exc), hint))
            content.unfinished = content.unfinished or path
            continue
        content.tensors += [(path, tensor) for tensor in tensors]
    return content


def _locate(
    tensors: Iterable[tuple[str, JsonTensor]], directory: str, paths: Collection[str]
) -> tuple[dict[str, TensorFile], list[ReportedStatistics], list[str]]:
    """Find the files of tensors.

    Args:
        tensors: each with the path of its JSON file.
        directory: where their files are.
        paths: all files of the place.

    Returns:
        The files that exist, by path; the statistics of all tensors; the names of files that do not exist.
    """
    named: dict[str, TensorFile] = {}
    reported: list[ReportedStatistics] = []
    missing: list[str] = []
    for source, tensor in tensors:
        path = f"{directory}{tensor.data_name}" if tensor.data_name else ""
        if path and path not in paths:
            if not tensor.is_optional:
                missing.append(tensor.data_name)
            path = ""
        elif container := _CONTAINERS.get(_extension(path)):
            named.setdefault(path, TensorFile(tensor.name, container))
        reported.append(_reported(source, tensor, path))
    return named, reported, missing


def _check_complete(
    json_files: Sequence[str], missing: Sequence[str], unlisted: Sequence[str], content: _JsonContent
) -> None:
    """Add to `content` what shows that the JSON files and the tensor files do not belong together yet."""
    if not json_files:
        return
    json_file, is_readable = json_files[0], not content.problems
    if missing:
        content.problems.append(
            Problem(
                json_file,
                f"names {counted(len(missing), 'file')} not to be found; the first is {missing[0]:.200}",
                "msProbe writes no file for a tensor in the NZ format, or if its path is too long.",
            )
        )
    if unlisted and is_readable:
        content.problems.append(
            Problem(
                json_file,
                f"has no entry for {len(unlisted)} tensor files; the first is {unlisted[0]}",
                "msProbe writes entries late: the process was still running, or died. The names of the files "
                "are used.",
            )
        )
        content.unfinished = content.unfinished or json_file


def _named_by_path(path: str, mode: str) -> TensorFile:
    extension = _extension(path)
    stem = path.rpartition("/")[2].removesuffix(extension)
    return TensorFile(parse_tensor_name(stem, graph=mode), _CONTAINERS[extension])


def _reported(source: str, tensor: JsonTensor, path: str) -> ReportedStatistics:
    return ReportedStatistics(
        source=source,
        name=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        statistics=tensor.statistics,
        tensor=path,
        checksum=tensor.checksum,
        digits=tensor.digits,
    )


def _any_below(directory: str, paths: Iterable[str]) -> bool:
    return any(path.startswith(directory) for path in paths)


def _extension(path: str) -> str:
    name = path.rpartition("/")[2]
    return f".{name.rpartition('.')[2]}" if "." in name else ""
