"""The names that dump systems give to element types: in tables, in JSON and in file names."""

from __future__ import annotations

from workers.arrays.dtypes import from_name

_ALIASES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bf16": "bfloat16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "float8_e8m0": "float8_e8m0fnu",
    "float4_e2m1": "float4_e2m1fn",
    "float6_e2m3fn": "float6_e2m3",
    "float6_e3m2fn": "float6_e3m2",
}
_PREFIXES = ("torch.", "mindspore.", "dt_", "knumbertype")


def canonical(text: str) -> str:
    """Return our name of an element type, however it is spelled; the text itself if it is unknown.

    >>> [canonical(name) for name in ("Float32", "DT_FLOAT", "torch.bfloat16", "BF16", "unsupported(3)")]
    ['float32', 'float32', 'bfloat16', 'bfloat16', 'unsupported(3)']
    """
    name = text.lower()
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    name = _ALIASES.get(name, name)
    try:
        known = from_name(name).name
    except ValueError:
        return text
    return known if known == name else text
