"""The tensor that a pickle of torch describes."""

import pytest

from tests.pt_files import call, integer, named, text, tuple_of
from workers.dump.formats.pt_pickle import RebuiltTensor, rebuilt_tensor
from workers.errors import UnreadableTensor

STORAGE = tuple_of(text("storage"), named("torch.FloatStorage"), text("0"), text("cpu"), integer(6)) + b"Q"
SIZE, STRIDE = tuple_of(integer(2), integer(3)), tuple_of(integer(3), integer(1))
HOOKS = call("collections.OrderedDict")
V2 = "torch._utils._rebuild_tensor_v2"


def pickled(value: bytes) -> bytes:
    return b"\x80\x02" + value + b"."


def test_tensor_has_its_storage_and_geometry() -> None:
    tensor = rebuilt_tensor(pickled(call(V2, STORAGE, integer(0), SIZE, STRIDE, b"\x89", HOOKS)))
    assert tensor == RebuiltTensor("torch.FloatStorage", "0", 6, 0, (2, 3), (3, 1))


def test_type_that_is_named_next_to_the_storage_is_kept() -> None:
    arguments = (STORAGE, integer(0), SIZE, STRIDE, b"\x89", HOOKS, named("torch.uint16"))
    tensor = rebuilt_tensor(pickled(call("torch._utils._rebuild_tensor_v3", *arguments)))
    assert tensor.dtype == "torch.uint16"


def test_parameter_is_its_tensor() -> None:
    tensor = call(V2, STORAGE, integer(0), SIZE, STRIDE, b"\x89", HOOKS)
    whole = call("torch._utils._rebuild_parameter", tensor, b"\x88", HOOKS)
    assert rebuilt_tensor(pickled(whole)).size == (2, 3)


@pytest.mark.parametrize(("key", "is_stored"), [("conj", False), ("neg", False), ("other", True)])
def test_operation_that_is_still_to_be_done_is_refused(key: str, is_stored: bool) -> None:
    """Its elements are the conjugates, or negatives, of those that are stored."""
    metadata = b"}" + text(key) + (b"\x89" if is_stored else b"\x88") + b"s"
    with pytest.raises(UnreadableTensor, match=f"not as they are stored: {key}"):
        rebuilt_tensor(pickled(call(V2, STORAGE, integer(0), SIZE, STRIDE, b"\x89", HOOKS, metadata)))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (STORAGE, "is not a single tensor: a storage"),
        (b"}", "is not a single tensor: a dictionary"),
        (call(V2, b"N", integer(0), SIZE, STRIDE, b"\x89", HOOKS), "made of a value of type NoneType"),
        (call(V2, STORAGE, b"N", SIZE, STRIDE, b"\x89", HOOKS), "impossible shape, strides or offset"),
        (call(V2, STORAGE, integer(0), SIZE, STRIDE, b"\x89", HOOKS, integer(1)), "for metadata"),
    ],
)
def test_anything_else_is_named(value: bytes, message: str) -> None:
    with pytest.raises(UnreadableTensor, match=message):
        rebuilt_tensor(pickled(value))
