"""Kernels as object code: llvmlite loads it in 0.05 s, while numba, which has made it, takes 0.5 s to import.

An object has the entries of `workers.arrays.compiled.kernel_entries`, which allocate nothing and raise
nothing, so it needs nothing of numba. It is kept in one file, under a name that says of which source, by
which LLVM and for which processor it was made: next to the source, in `NUMBA_CACHE_DIR`, or in the user's
directory for temporary files, whichever can be written first.

An image is built once, and runs read-only on many machines. So it ships its kernels, compiled for a target
that all of these machines can execute: `python -m workers.arrays.compiled.ship_kernels` compiles them next to
their source, and records the target there. For x86_64 that is x86-64-v3 (AVX2 and FMA; Intel since 2013, AMD
since 2017). The statistics of 1 MiB of float32 then run at 18 GB/s on a Zen 4, as fast as code compiled for
that processor, and at 5.8 GB/s with code for any x86_64. On aarch64, every processor has vectors of 128 bits.
A processor that lacks what the target needs does not use the shipped kernels, and neither does a process with
a `NUMBA_CPU_NAME` of its own.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import llvmlite  # type: ignore[import-untyped]
import msgspec
import xxhash
from llvmlite import binding

from workers.arrays.compiled import kernel_target
from workers.host.paths import own_directory

#: What the code of the entries depends on.
_SOURCES: Final = (
    *("kernel_loops.py", "comparison_loops.py", "marginal_loops.py"),
    *("bitshuffle_code.py", "chunk_loops.py", "chunk_plan.py", "kernel_entries.py", "kernel_objects.py"),
    "kernel_target.py",
)
#: Functions of numba that object code may name and never calls: nothing is allocated, so nothing is freed.
_NEVER_CALLED: Final = ("NRT_MemInfo_call_dtor",)
#: Where an entry would write a result and an error. It has neither, so all threads may share the place.
_unused = ctypes.create_string_buffer(16)
_UNUSED: Final = ctypes.addressof(_unused)
#: What llvmlite keeps of loaded code, for as long as the process lives.
_engines: list[Any] = []


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """A function of object code: called with addresses and numbers of elements."""

    address: int
    _call: Callable[..., int]

    def __call__(self, *numbers: int) -> None:
        """Run it, without the lock of Python."""
        if self._call(_UNUSED, _UNUSED, *numbers):
            raise RuntimeError("a kernel failed")


class _Kept(msgspec.Struct):
    """The content of a file: object code; and by name of an entry, its symbol and number of arguments."""

    objects: list[bytes]
    symbols: dict[str, tuple[str, int]]


def load() -> dict[str, KernelEntry]:
    """Return the entries by name; compile and keep them first if nobody has done so, or is doing so."""
    kept = _read()
    if kept is None:
        with _turn():
            kept = _read() or _compile()
    return _loaded(kept)


def are_kept() -> bool:
    """Return whether `load` need not compile the entries."""
    return any(path.exists() for path in _paths())


def _compile() -> _Kept:
    """Compile the entries, in half a minute, and keep them if this machine lets them be kept."""
    from workers.arrays.compiled import kernel_entries  # deferred: numba takes 0.5 s to import

    made = kernel_entries.compile_all()
    kept = _Kept(
        [entry.code for entry in made if entry.code], {e.name: (e.symbol, e.arguments) for e in made}
    )
    content = msgspec.msgpack.encode(kept)
    for path in _paths():
        with suppress(OSError):
            _write(path, content)
            break
    return kept


def _read() -> _Kept | None:
    for path in _paths():
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.msgpack.decode(path.read_bytes(), type=_Kept)
    return None


@contextmanager
def _turn() -> Iterator[None]:
    directory = own_directory()
    if directory is None:
        yield
        return
    with directory.joinpath(f"{_file_name()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _file_name() -> str:
    """Return the name of the file, which is another one for other sources and processors."""
    kernel_target.use_target()
    here = Path(__file__).parent
    content = b"".join(here.joinpath(name).read_bytes() for name in _SOURCES)
    source = xxhash.xxh3_64_hexdigest(content + llvmlite.__version__.encode())
    return f"kernels.{xxhash.xxh3_64_hexdigest(kernel_target.processor().encode())}.{source}.objects"


def _paths() -> Iterator[Path]:
    name = _file_name()
    yield Path(__file__).parent / "__pycache__" / name
    if configured := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(configured, name)
    if (directory := own_directory()) is not None:
        yield directory / name


def _write(path: Path, content: bytes) -> None:
    """Write the file as a whole or not at all, and remove those of older sources for this processor."""
    path.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).chmod(0o644)
    Path(file.name).rename(path)
    prefix = path.name.rsplit(".", 2)[0]
    for other in path.parent.glob(f"{prefix}.*.objects"):
        if other != path:
            other.unlink(missing_ok=True)


def _loaded(kept: _Kept) -> dict[str, KernelEntry]:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    for name in _NEVER_CALLED:
        binding.add_symbol(name, _address_of(ctypes.CDLL(None).abort))
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    _engines.append(engine)
    for code in kept.objects:
        engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return {
        name: _entry(engine.get_function_address(symbol), arguments)
        for name, (symbol, arguments) in kept.symbols.items()
    }


def _address_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _entry(address: int, arguments: int) -> KernelEntry:
    """Return a function of numba as one of Python: it begins with the places of its result and its error."""
    words = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_ssize_t] * arguments]
    return KernelEntry(address, ctypes.CFUNCTYPE(ctypes.c_int, *words)(address))
