"""A layout that the user declares, for trees that no program prescribes.

    rank{rank}/step{step}/{module}.{io}.{slot}.pt

The last level is the name of a file, the others are directories. Fields: `rank`, `step` (or `device`, `pid`,
`iteration`, `time`) say where a file belongs, in the name of a directory or of the file; `module`, `op`,
`io`, `slot`, `sequence`, `graph`, `net` and `name` say what it is; any other field matches anything. Fields
may have regular expressions of their own: `{step:[0-9]{6}}`. Files in the same directories with other names
are named by these and their stems. A dump without ranks is one of rank 0; one without steps, of step 0.

A tree of several shapes has several patterns, with `;` between them. The first one that fits a directory and
the name of a file in it counts, also before other layouts.

    rank{rank}/step{step}/{module}.{io}.{slot}.pt; reference/{module}.pt
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

from ingest.layouts.base import (
    FIELDS,
    STEP_FIELDS,
    Layout,
    Pattern,
    Place,
    TensorFile,
    join_slot,
    parse,
)
from ingest.layouts.pytorch import module_type
from workers.dump.formats.header import Container
from workers.dump.model import TensorName
from workers.errors import UsageError

CONTAINERS: Mapping[str, Container] = {
    "pt": Container.PT,
    "pth": Container.PT,
    "bin": Container.PT,
    "ckpt": Container.PT,
    "npy": Container.NPY,
    "npz": Container.NPZ,
    "safetensors": Container.SAFETENSORS,
    "tensorproto": Container.TENSOR_PROTO,
}
_EXAMPLE = "For example: --layout 'rank{rank}/step{step}/{module}.{io}.{slot}.pt'"
_INPUTS = frozenset(["input", "inputs", "in"])
_OUTPUTS = frozenset(["output", "outputs", "out"])
_GRADIENTS = frozenset(["grad", "grads", "gradient", "gradients"])
_PARAMETERS = frozenset(["param", "params", "parameter", "parameters"])
_OWN = {"slot": r"[0-9]{1,9}", "sequence": r"[0-9]{1,18}", "io": r"[A-Za-z_]+"}
_BARE_FIELD = re.compile(r"\{(slot|sequence|io)\}")


def declare(text: str) -> tuple[Layout, ...]:
    """Return the layouts that patterns declare, one for each.

    Raises:
        UsageError: a pattern is not one, or none of them names a rank or a step.
    """
    layouts = tuple(_declared(pattern.strip().strip("/")) for pattern in text.split(";") if pattern.strip())
    if not any(layout.proves_dump for layout in layouts):
        raise UsageError(f"--layout {text}: names neither {{rank}} nor {{step}}", hint=_EXAMPLE)
    return layouts


def _declared(text: str) -> Layout:
    own: Callable[[re.Match[str]], str] = lambda match: f"{{{match[1]}:{_OWN[match[1]]}}}"  # noqa: E731
    directories, _, file_level = text.rpartition("/")
    try:
        of_file = parse(_BARE_FIELD.sub(own, file_level), of_files=True)
        whole = parse(f"{directories}/{_BARE_FIELD.sub(own, file_level)}".lstrip("/"), of_files=True)
        above = parse(directories) if directories else None
    except (re.error, ValueError) as exc:
        raise UsageError(f"--layout {text}: {exc}", hint=_EXAMPLE) from exc
    fields = {name for level in whole.levels for name in level.groupindex}
    told_by_file = bool(of_file.levels[-1].groupindex.keys() & FIELDS.keys())
    return Layout(
        name="declared",
        declared=text,
        patterns=() if told_by_file or above is None else (above,),
        file_patterns=(whole,) if told_by_file or above is None else (),
        implied={} if fields & STEP_FIELDS.keys() else {"step": "0"},
        proves_dump=bool(fields & {*STEP_FIELDS, "rank", "device", "pid"}),
        tensor_suffixes=frozenset(CONTAINERS),
        own_file=of_file.levels[-1],
        of_path=partial(_tensor_file, of_file),
    )


def _tensor_file(of_file: Pattern, place: Place, path: str) -> TensorFile | None:
    file_name = path.rpartition("/")[2]
    stem, _, suffix = file_name.rpartition(".")
    container = CONTAINERS.get(suffix)
    fields = of_file.match(0, file_name)
    if fields is not None:
        name = _named({**place.fields, **fields})
        return TensorFile(name, container or Container.PT, name_member=join_slot)
    if container is None:
        return None
    # It does not fit: its stem stands behind the module that its directories name.
    above = _named(place.fields)
    op_name = ".".join(filter(None, (above.op_name, stem)))
    name = above._replace(op_type="file", op_name=op_name)
    return TensorFile(name, container, name_member=_module_member)


def _named(fields: Mapping[str, str]) -> TensorName:
    module = fields.get("module") or fields.get("name") or fields.get("op") or ""
    io = fields.get("io", "output").lower()
    slot = int(fields["slot"]) if fields.get("slot") else 0
    op_type, module = (fields["op"], module) if fields.get("op") else _typed(module)
    if io in _GRADIENTS:
        op_type, io = "Gradient", "output"
    elif io in _INPUTS:
        io = "input"
    elif io in _OUTPUTS:
        io = "output"
    return TensorName(
        net=fields.get("net", ""),
        graph=fields.get("graph", ""),
        op_type=op_type,
        op_name=module,
        io=io,
        slot=slot,
        sequence=int(fields["sequence"]) if fields.get("sequence") else -1,
    )


def _typed(module: str) -> tuple[str, str]:
    kind, _, owner = module.partition(".")
    if not owner or kind not in _GRADIENTS | _PARAMETERS:
        return module_type(module), module
    return "Gradient" if kind in _GRADIENTS else "Parameter", owner


def _module_member(name: TensorName, path: tuple[str, ...], number: int) -> TensorName:  # noqa: ARG001
    """Return the name of a tensor of a file of many: a state dict, an optimizer, a set of gradients."""
    if not path:
        return name
    net = ".".join(filter(None, (name.net, name.op_name)))
    return name._replace(net=net, op_type="Parameter", op_name=".".join(path))
