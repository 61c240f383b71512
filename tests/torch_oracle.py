"""Write files with the real torch, and tell what it reads back from them. Runs in any Python that has torch.

    python torch_oracle.py DIRECTORY

writes `odd{n}/*.pt`, and `checkpoint/` if this torch can, and prints JSON: by path, shape and SHA-256 of the
bytes in C order of each tensor. It imports nothing of this project: any Python with torch can run it.
"""

import hashlib
import json
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

try:
    import torch
except ImportError:  # in the process that runs this one
    torch = None

DTYPES = [
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2"),
]

#: What a torch raises for a type that it lacks, or that its old format lacks.
_LACKING = (RuntimeError, TypeError, NotImplementedError, KeyError, AttributeError)


def values(dtype: Any, *shape: int) -> Any:
    """Return a tensor of numbers that differ."""
    numbers = torch.arange(-3, -3 + torch.Size(shape).numel()).reshape(shape)
    if dtype.is_complex:
        return torch.complex(numbers.double(), (numbers * 2 + 1).double()).to(dtype)
    if dtype == torch.bool:
        return numbers % 2 == 0
    return numbers.abs().double().to(dtype) if not dtype.is_signed else numbers.double().to(dtype)


def digest(tensor: Any) -> str:
    """Return SHA-256 of the bytes of a tensor in C order."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if plain.is_complex():
        plain = torch.view_as_real(plain).contiguous()
    return hashlib.sha256(bytes(plain.reshape(-1).view(torch.uint8).numpy())).hexdigest()


def views(tensor: Any) -> dict[str, Any]:
    """Return a tensor in all the ways in which it may lie in its storage."""
    return {
        "whole": tensor,
        "transposed": tensor.t(),
        "slice": tensor[1:, ::2],
        "column": tensor[:, 1],
        "expanded": tensor[0].expand(5, tensor.shape[1]),
        "last": tensor[-1, -1],
        "empty": tensor[:0],
        "again": tensor,
    }


def parts(value: Any) -> list[Any]:
    """Return the tensors of which a tensor consists."""
    if value.is_quantized:
        return [value.int_repr()]
    if value.is_sparse:
        return [value._indices(), value._values()]
    return [value]


def tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors in a value."""
    if isinstance(value, torch.Tensor):
        yield from parts(value)
    elif isinstance(value, dict):
        for member in value.values():
            yield from tensors(member)
    elif isinstance(value, (list, tuple)):
        for member in value:
            yield from tensors(member)


def cases() -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each file."""
    for name in DTYPES:
        if hasattr(torch, name):
            yield f"dtype_{name}", views(values(getattr(torch, name), 4, 6))
    number = torch.complex(torch.ones(3), torch.arange(3.0))
    yield "conjugate", {"conj": number.conj(), "imag_of_conj": number.conj().imag, "plain": number}
    yield "nested", {"a": [torch.ones(2), {"b": (torch.zeros(1), 3, None)}], "n": 1.5, 7: torch.arange(3)}
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    yield "state_dict", net.state_dict()
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    yield "optimizer", optimizer.state_dict()
    yield "parameter", net[0].weight
    yield "ordered", OrderedDict(z=torch.ones(1), a=torch.zeros(2))
    # Its two numbers have 128 bits.
    yield "random_state", {"rng": np.random.default_rng(0).bit_generator.state, "t": torch.ones(2)}
    yield "quantized", torch.quantize_per_tensor(torch.arange(6.0), 0.5, 3, torch.quint8)
    yield "sparse", torch.eye(4).to_sparse()


def main(directory: Path) -> None:
    """Write everything, and print what torch reads back."""
    told = {}
    for legacy in (False, True):
        below = directory / f"odd{int(legacy)}"
        below.mkdir(parents=True)
        for name, value in cases():
            path = below / f"{name}.pt"
            try:
                torch.save(value, path, _use_new_zipfile_serialization=not legacy)
                told[f"{below.name}/{path.name}"] = [
                    {"shape": list(tensor.shape), "sha256": digest(tensor)}
                    for tensor in tensors(torch.load(path))
                ]
            except _LACKING:
                path.unlink()
    checkpoint = save_checkpoint(directory / "checkpoint" / "step_3")
    print(json.dumps({"version": torch.__version__, "files": told, "checkpoint": checkpoint}))


def save_checkpoint(directory: Path) -> dict[str, Any] | None:
    """Write a checkpoint; return its tensors, or None if this torch has no function for it."""
    try:
        from torch.distributed.checkpoint import FileSystemWriter, save
    except ImportError:
        return None
    state = {
        "model": torch.nn.Linear(3, 4).state_dict(),
        "step": 3,
        "big": torch.arange(1000.0).reshape(10, 100),
    }
    save(state, storage_writer=FileSystemWriter(directory), no_dist=True)
    named = {"big": state["big"], **{f"model.{name}": tensor for name, tensor in state["model"].items()}}
    return {name: {"shape": list(tensor.shape), "sha256": digest(tensor)} for name, tensor in named.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
