"""One name for an element type, however a dump system spells it."""

import pytest

from workers.arrays.dtypes import canonical


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("torch.float32", "float32"),
        ("Float32", "float32"),
        ("kNumberTypeFloat16", "float16"),
        ("DT_FLOAT", "float32"),
        ("DT_BF16", "bfloat16"),
        ("torch.half", "float16"),
        ("mindspore.int64", "int64"),
        ("Bool", "bool"),
        ("FLOAT8_E8M0", "float8_e8m0fnu"),
        ("FLOAT4_E2M1", "float4_e2m1fn"),
        ("torch.long", "int64"),
        ("complex32", "complex32"),
    ],
)
def test_spellings_of_dump_systems_have_one_name(text: str, name: str) -> None:
    assert canonical(text) == name


@pytest.mark.parametrize("text", ["", "unsupported(3)", "torch.quint8", "f4", "<f4", "object", "STRING"])
def test_unknown_types_keep_their_spelling(text: str) -> None:
    """Also what numpy would understand, but no dump system writes."""
    assert canonical(text) == text
