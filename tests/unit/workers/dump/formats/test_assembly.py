"""Tensors of a file become parts that add up to the file, and views."""

import pytest

from workers.arrays.dtypes import from_name
from workers.arrays.strided import StridedView
from workers.dump.formats.assembly import (
    MAX_ENVELOPE_NBYTES,
    PlacedTensor,
    assemble,
)
from workers.dump.formats.header import TensorHeader
from workers.errors import UnreadableTensor

FLOAT = from_name("float32")
FILE = bytes(range(100))


def placed(
    offset: int, elements: int, dtype: str = "float32", view: StridedView | None = None
) -> PlacedTensor:
    element = from_name(dtype)
    return PlacedTensor(element, (elements,), offset, element.nbytes(elements), (f"t{offset}",), view=view)


def assembled(*tensors: PlacedTensor, file: bytes = FILE) -> tuple[TensorHeader, ...]:
    headers = assemble(tensors, {}, lambda offset, nbytes: file[offset : offset + nbytes], len(file))
    parts = [header for header in headers if header.view is None]
    whole = b"".join(part.lead + file[part.offset : part.offset + part.nbytes] + part.tail for part in parts)
    assert whole == file
    return headers


def test_parts_stand_in_the_order_of_the_file() -> None:
    headers = assembled(placed(50, 5), placed(10, 5))
    assert [(header.offset, header.number) for header in headers] == [(10, 1), (50, 0)]
    assert (headers[0].lead, headers[0].tail) == (FILE[:10], b"")
    assert (headers[1].lead, headers[1].tail) == (FILE[30:50], FILE[70:])


def test_tensor_inside_of_another_one_is_a_view_of_it() -> None:
    base, inner, unaligned, other = assembled(
        placed(10, 10), placed(18, 2), placed(19, 2), placed(20, 4, "int16")
    )
    assert (base.offset, base.view) == (10, None)
    assert [header.view for header in (inner, unaligned, other)] == [
        StridedView(base=10),
        StridedView(),
        StridedView(),
    ]


def test_tensor_that_overlaps_the_end_of_another_one_is_copied() -> None:
    _, view = assembled(placed(10, 5), placed(20, 5))
    assert view.view == StridedView()


def test_long_runs_of_other_bytes_are_parts_of_their_own() -> None:
    file = bytes(3 * MAX_ENVELOPE_NBYTES + 8)
    headers = assembled(placed(MAX_ENVELOPE_NBYTES + 4, 1), file=file)
    assert [header.is_part for header in headers] == [True, False, True]
    edge = assembled(placed(MAX_ENVELOPE_NBYTES, 1), file=file[: 2 * MAX_ENVELOPE_NBYTES + 4])
    assert [header.is_part for header in edge] == [False]


def test_views_that_would_fill_the_memory_are_refused() -> None:
    expanded = PlacedTensor(FLOAT, (2**28,), 0, 2**30, view=StridedView((0,)))
    with pytest.raises(UnreadableTensor, match="would take 1073741824 bytes, of 100 in the file"):
        assembled(expanded)
