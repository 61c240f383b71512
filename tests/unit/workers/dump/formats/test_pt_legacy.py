"""Files of `torch.save` before torch 1.6: five pickles, and the storages behind them."""

import numpy as np
import pytest

from tests.pt_files import integer, pickled, rebuilt, text
from workers.dump.formats.header import ReadAt, Truncated
from workers.dump.formats.pt_legacy import LEGACY_MAGIC, read_legacy
from workers.dump.formats.pt_pickle import RebuiltTensor
from workers.errors import UnreadableTensor

VALUES = np.arange(6, dtype=np.float32)
MACHINE = b"}" + text("little_endian") + b"\x88s"


def made(
    *,
    protocol: int = 1001,
    machine: bytes = MACHINE,
    keys: bytes = b"]" + text("0") + b"a",
    payload: bytes = (6).to_bytes(8, "little") + VALUES.tobytes(),
) -> bytes:
    value = rebuilt("torch.FloatStorage", (2, 3), (3, 1))
    head = LEGACY_MAGIC + b" j\xa8P\x19."
    return head + b"".join(map(pickled, (integer(protocol), machine, value, keys))) + payload


def reader(file: bytes) -> ReadAt:
    return lambda offset, nbytes: file[offset : offset + nbytes]


def test_value_and_place_of_its_storage_are_found() -> None:
    file = made()
    value, nbytes, big_endian, place = read_legacy(reader(file), len(file))
    assert isinstance(value, RebuiltTensor)
    assert nbytes == len(made(payload=b""))
    assert (value.size, value.key, big_endian) == ((2, 3), "0", False)
    offset, nbytes = place("0")
    assert file[offset : offset + nbytes] == VALUES.tobytes()
    with pytest.raises(UnreadableTensor, match="its storage 1 is not in the file"):
        place("1")


def test_order_of_bytes_is_that_of_the_machine() -> None:
    file = made(machine=MACHINE.replace(b"\x88", b"\x89"))
    assert read_legacy(reader(file), len(file)).big_endian


def test_file_that_ends_in_its_storage_may_still_grow() -> None:
    file = made()[:-1]
    with pytest.raises(Truncated, match="its storage 0 ends at"):
        read_legacy(reader(file), len(file))


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (made(protocol=1002), "not in a format of torch.save that is known"),
        (made(machine=integer(1)), "not in a format of torch.save that is known"),
        (made(keys=integer(1)), "its list of storages is damaged"),
        (made(keys=b"]" + integer(1) + b"a"), "its list of storages is damaged"),
        (made(keys=b"]" + text("9") + b"a"), "its storage 9 is not the one of a tensor"),
        (made(keys=b"](" + text("0") + text("0") + b"e", payload=bytes(16)), "its storage 0 is not the one"),
    ],
)
def test_damage_is_named(file: bytes, message: str) -> None:
    with pytest.raises(UnreadableTensor, match=message):
        read_legacy(reader(file), len(file))
