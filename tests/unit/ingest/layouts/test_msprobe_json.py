"""What msProbe records about tensors in JSON, by our names and definitions."""

import json
import math
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


def test_gradients_that_old_versions_enter_early_come_last() -> None:
    """Before 26.0, the key has no number, and stands behind the forward call of its module."""
    calls = {
        "Module.a.Linear.forward.0": {"output": [TENSOR]},
        "Module.a.Linear.parameters_grad": {"weight": [TENSOR]},
        "Module.b.Linear.parameters_grad": {"weight": [TENSOR]},
        "Module.b.Linear.backward.0": {"output": [TENSOR]},
        "Module.b.Linear.parameters_grad.0": {"weight": [TENSOR]},
    }
    assert [one.name.op_name for one in read_tensors(dump_json(calls))] == [
        "Module.a.Linear.forward.0",
        "Module.b.Linear.backward.0",
        "Module.b.Linear.parameters_grad.0",
        "Module.b.Linear.parameters_grad",
        "Module.a.Linear.parameters_grad",
    ]


def test_tensor_of_a_point_to_point_operation_goes_by_the_index_of_the_operation() -> None:
    operation = {"class_type": "torch.distributed.P2POp", "tensor": dict(TENSOR), "op": "isend", "peer": 1}
    (found,) = told({"input_args": [[None, operation]]}, "Distributed.batch_isend_irecv.0.forward")
    assert (found.name.io, found.name.slot) == ("input.0", 1)


@pytest.mark.parametrize("mean", [math.nan, math.inf, None])
def test_without_a_finite_mean_nothing_is_said_of_nan_and_infinity(mean: float | None) -> None:
    """One such element makes what torch reports something else than ours, which are of finite elements."""
    found = one({"Max": math.inf, "Min": -2.0, "Mean": mean, "Norm": mean}).statistics
    assert found.min == -2
    assert all(math.isnan(value) for value in (found.max, found.mean, found.l2_norm, found.nan_count))
    assert math.isnan(found.pos_inf_count)


def test_maximum_of_finite_elements_is_taken_where_it_is_given() -> None:
    tensor = {"Max": math.nan, "Min": math.nan, "Max_except_inf_nan": 7.0, "Min_except_inf_nan": -1.0}
    found = one(tensor).statistics
    assert (found.max, found.min) == (7, -1)


def test_magnitudes_of_complex_elements_are_not_their_values() -> None:
    found = one({"dtype": "torch.complex64", **STATISTICS}).statistics
    assert found.count == 6
    assert all(math.isnan(value) for value in found.as_row()[1:])


def test_what_cannot_be_true_is_not_taken() -> None:
    found = one({"Max": -1.0, "Min": 1.0, "Mean": 10**400, "Norm": -4.0}).statistics
    assert all(math.isnan(value) for value in found.as_row()[1:])


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
