"""Make files as `torch.save` writes them, without torch: a zip archive with a pickle built by opcodes."""

import io
import struct
import zipfile
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np

#: Prefixes of torch's storage classes by numpy's name of the element type.
STORAGES = {
    "bfloat16": "BFloat16",
    "bool": "Bool",
    "complex128": "ComplexDouble",
    "complex64": "ComplexFloat",
    "float16": "Half",
    "float32": "Float",
    "float64": "Double",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "int8": "Char",
    "uint8": "Byte",
}


def text(value: str) -> bytes:
    """Return a string (BINUNICODE)."""
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def integer(value: int) -> bytes:
    """Return an integer in the shortest of BININT1, BININT2, BININT and LONG1, as Python does."""
    if 0 <= value < 1 << 8:
        return b"K" + struct.pack("<B", value)
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    nbytes = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([nbytes]) + value.to_bytes(nbytes, "little", signed=True)


def named(name: str) -> bytes:
    """Return the object of a dotted name (GLOBAL)."""
    module, _, last = name.rpartition(".")
    return f"c{module}\n{last}\n".encode()


def tuple_of(*values: bytes) -> bytes:
    """Return a tuple of values."""
    return b"(" + b"".join(values) + b"t"


def call(function: str, *arguments: bytes) -> bytes:
    """Return a call of a function (REDUCE)."""
    return named(function) + tuple_of(*arguments) + b"R"


def storage(kind: str, size: int, key: str = "0") -> bytes:
    """Return a reference to a storage (BINPERSID)."""
    return tuple_of(text("storage"), named(kind), text(key), text("cpu"), integer(size)) + b"Q"


def integers(values: tuple[int, ...]) -> bytes:
    """Return a tuple of integers."""
    return tuple_of(*map(integer, values))


HOOKS = call("collections.OrderedDict")


def pickled(value: bytes) -> bytes:
    """Return a complete pickle of protocol 2."""
    return b"\x80\x02" + value + b"."


def rebuilt(
    kind: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    *more: bytes,
    offset: int = 0,
    elements: int | None = None,
    function: str = "torch._utils._rebuild_tensor_v2",
) -> bytes:
    """Return the call that rebuilds a tensor; `elements` is the size of its storage."""
    size = int(np.prod(shape)) if elements is None else elements
    return call(
        function,
        storage(kind, size),
        integer(offset),
        integers(shape),
        integers(strides),
        b"\x89",
        HOOKS,
        *more,
    )


def array_of_numpy(shape: tuple[int, ...]) -> bytes:
    """Return an array of numpy with one element, whatever its shape is (BUILD)."""
    dtype = named("numpy.dtype") + tuple_of(text("u1")) + b"\x81" + tuple_of(integer(3), text("|")) + b"b"
    state = tuple_of(integer(1), integers(shape), dtype, b"\x89", b"C\x01a")
    return named("numpy._core.multiarray._reconstruct") + b")\x81" + state + b"b"


def strides_of(values: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """Return the strides of an array in elements."""
    return tuple(stride // values.itemsize for stride in values.strides)


def archive(
    members: Mapping[str, bytes], *, stem: str = "archive", compression: int = zipfile.ZIP_STORED
) -> bytes:
    """Return a zip archive with the members in the directory `stem`."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as writer:
        for name, content in members.items():
            writer.writestr(f"{stem}/{name}", content)
    return file.getvalue()


def members_of(pickle: bytes, payload: bytes, *, order: str = "little") -> dict[str, bytes]:
    """Return the members of an archive with the names and in the order that torch 2 uses."""
    return {
        "data.pkl": pickled(pickle),
        "byteorder": order.encode(),
        "data/0": payload,
        "version": b"3\n",
        ".data/serialization_id": b"0" * 40,
    }


def pt_bytes(values: np.ndarray[Any, Any], *, order: str = "little") -> bytes:
    """Return an array that is contiguous in C or Fortran order as a `.pt` file."""
    stored = values.astype(values.dtype.newbyteorder("<" if order == "little" else ">"))
    fortran = values.flags.f_contiguous and not values.flags.c_contiguous
    payload = stored.tobytes("F" if fortran else "C")
    pickle = rebuilt(f"torch.{STORAGES[values.dtype.name]}Storage", values.shape, strides_of(values))
    return archive(members_of(pickle, payload, order=order))


#: Axes of parallelism, of each of which SGLang's dumper records a rank and a size.
_SGLANG_AXES = ("tp", "pp", "dp", "cp", "vpp", "ep", "etp", "edp", "tcp", "etmp")


def sglang_file(values: np.ndarray[Any, Any], number: int) -> tuple[str, bytes]:
    """Return name and content of a file of SGLang's dumper, with all that it records of Megatron's mesh."""
    layer = number // 16
    name = f"non_intrusive__layers.{layer}.mlp.fc{number % 16 // 2}.{('inputs.0', 'output')[number % 2]}"
    tags = {"step": 0, "rank": 0, "dump_index": number + 1, "name": name, "recompute_status": "disabled"}
    mesh = {f"{axis}_{figure}": int(figure == "size") for axis in _SGLANG_AXES for figure in ("rank", "size")}
    meta = {**tags, "layer_id": layer, "world_rank": 0, "world_size": 1, "megatron_parallel_info": mesh}
    tensor = rebuilt(f"torch.{STORAGES[values.dtype.name]}Storage", values.shape, strides_of(values))
    pickle = _as_dumped({"value": tensor, "meta": meta}, count())
    stem = "___".join(f"{tag}={value}" for tag, value in {**tags, "layer_id": layer}.items())
    return f"{stem}.pt", archive(members_of(pickle, values.tobytes()), stem=stem)


def _as_dumped(value: dict[str, Any] | str | int | bytes, places: Iterator[int]) -> bytes:
    """Return a value as Python pickles it: it remembers dictionaries and texts. Bytes are instructions."""
    match value:
        case dict():
            begin = b"}q" + bytes([next(places)]) + b"("
            return (
                begin + b"".join(_as_dumped(part, places) for item in value.items() for part in item) + b"u"
            )
        case str():
            return text(value) + b"q" + bytes([next(places)])
        case int():
            return integer(value)
        case bytes():
            return value
