"""What msProbe records about tensors in JSON, by our names and definitions."""

import json
import math
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.layouts.msprobe import JsonTensor, NotMsProbe, read_tensors

TENSOR = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3]}
STATISTICS = {"Max": 3.5, "Min": -1.0, "Mean": 0.25, "Norm": 4.0}


def dump_json(data: Mapping[str, Any]) -> bytes:
    return json.dumps({"task": "tensor", "level": "mix", "framework": "pytorch", "data": data}).encode()


def told(entry: Any, key: str = "Functional.f.0.forward") -> list[JsonTensor]:
    return read_tensors(dump_json({key: entry}))


def one(tensor: Mapping[str, Any]) -> JsonTensor:
    (found,) = told({"output": [{**TENSOR, **tensor}]})
    return found


def test_way_to_a_tensor_through_lists_and_dictionaries_is_its_name() -> None:
    tensor = dict(TENSOR)
    entry = {
        "input_args": [None, tensor, [{"type": "int", "value": 1}, [tensor, {"k": tensor}]]],
        "input_kwargs": {"w": tensor, "dtype": {"type": "torch.dtype", "value": "x"}, "shape": [2]},
        "output": [tensor],
        "parameters": {"bias": tensor},
    }
    assert [(parsed.name.io, parsed.name.slot) for parsed in told(entry)] == [
        ("input", 1),
        ("input.2.1", 0),
        ("input.2.1.1.k", -1),
        ("kwargs.w", -1),
        ("output", 0),
        ("parameters.bias", -1),
    ]


def test_memory_is_not_that_of_the_ways_to_all_elements() -> None:
    """Each of these has 390 indices, which took a gigabyte for 600 kB."""
    deep: Any = [0] * 20_000
    for _ in range(389):
        deep = [deep]
    data = dump_json({"Functional.f.0.forward": {"output": deep}})
    tracemalloc.start()
    assert read_tensors(data) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize(("key", "name"), [("k" * 10_000, "a"), ("f", "a" * 10_000)])
def test_names_that_fill_memory_are_refused(key: str, name: str) -> None:
    with pytest.raises(NotMsProbe, match="names that are many times as long as the file"):
        told({"output": {name: [TENSOR] * 1000}}, f"{key}.0.forward")


def test_gradients_of_parameters_and_saved_values_have_forms_of_their_own() -> None:
    tensor = dict(TENSOR)
    (gradient,) = told({"weight": [tensor]}, "Module.fc.Linear.parameters_grad.0")
    assert (gradient.name.io, gradient.name.slot) == ("parameters_grad.weight", -1)
    assert [(parsed.name.io, parsed.name.slot) for parsed in told([tensor, {"k": tensor}], "x.0.debug")] == [
        ("debug", 0),
        ("debug.1.k", -1),
    ]
    (whole,) = told(tensor, "x.0.debug")
    assert (whole.name.io, whole.name.slot) == ("debug", -1)


def test_statistics_are_taken_by_our_definitions() -> None:
    found = one(STATISTICS).statistics
    assert (found.count, found.max, found.min, found.mean, found.l2_norm) == (6, 3.5, -1, 0.25, 4)
    assert (found.nan_count, found.pos_inf_count, found.neg_inf_count) == (0, 0, 0)
    assert math.isnan(found.std)


@pytest.mark.parametrize("mean", [math.nan, math.inf, None])
def test_without_a_finite_mean_nothing_is_said_of_nan_and_infinity(mean: float | None) -> None:
    """One such element makes what torch reports something else than ours, which are of finite elements."""
    found = one({"Max": math.inf, "Min": -2.0, "Mean": mean, "Norm": mean}).statistics
    assert found.min == -2
    assert all(math.isnan(value) for value in (found.max, found.mean, found.l2_norm, found.nan_count))
    assert math.isnan(found.pos_inf_count)


@pytest.mark.parametrize(
    ("md5", "checksum"),
    [
        ("0a1b2c3d", "crc32:0a1b2c3d"),
        ("0x00112233445566ff", "xor64:00112233445566ff"),
        ("0" * 32, "md5:" + "0" * 32),
        (None, ""),
        ("?", ""),
        (7, ""),
    ],
)
def test_checksum_has_its_kind(md5: object, checksum: str) -> None:
    assert one({"md5": md5}).checksum == checksum


@pytest.mark.parametrize(("dtype", "digits"), [("torch.bfloat16", 2), ("Float16", 3), ("torch.float32", 9)])
def test_narrow_types_have_few_digits(dtype: str, digits: int) -> None:
    found = one({"dtype": dtype})
    assert (found.digits, found.dtype, found.name.declared_dtype) == (digits, dtype, dtype)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8) | st.just(TENSOR),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "dtype", "shape", "Max", "Norm", "md5", "data_name", "tensor", "class_type", "x"]
            )
            | st.text(max_size=4),
            below,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(ANYTHING, st.sampled_from(["F.f.0.forward", "M.parameters_grad.0", "x.0.debug", "", ".", "\ud800"]))
def test_any_json_is_read_or_refused(value: Any, key: str) -> None:
    for data in (value, {"data": value}, {"data": {key: value}}, {"data": {key: {"output": value}}}):
        try:
            found = read_tensors(json.dumps(data).encode())
        except NotMsProbe:
            continue
        for told in found:
            told.name.op_name.encode()
            told.name.io.encode()


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"data":' * 100_000, b'{"data":{"a":' + b"[" * 5000])
def test_deep_nesting_is_refused(data: bytes) -> None:
    with pytest.raises(NotMsProbe):
        read_tensors(data)
