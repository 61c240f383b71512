"""Which elements differ, and in which bits."""

import numpy as np
import pytest

from ingest.reader.anatomy.bits import bit_difference


def test_elements_and_bits_are_named() -> None:
    first = np.ones((3, 4), np.float32)
    second = first.copy()
    second.view(np.uint32)[2, 1] ^= (1 << 20) | 1
    answer = bit_difference(list(first), list(second), (3, 4))
    assert (answer.elements, answer.bits) == (1, 2)
    assert (answer.first[0].index, answer.first[0].bits) == ((2, 1), (0, 20))
    assert str(answer).startswith("1 element, 2 bits; first [2, 1]: 1.0 against 1.125")


def test_zeros_of_both_signs_differ_and_equal_nan_do_not() -> None:
    first, second = np.array([0.0, np.nan]), np.array([-0.0, np.nan])
    answer = bit_difference([first], [second], (2,))
    assert [(element.index, element.bits) for element in answer.first] == [((0,), (63,))]


def test_pieces_that_do_not_fill_the_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fill"):
        bit_difference([np.ones(2)], [np.ones(2)], (3,))


@pytest.mark.parametrize("orders", ["<>", "><", ">>"])
def test_bits_are_those_of_the_number_whatever_the_order_of_its_bytes(orders: str) -> None:
    first = np.array([1, 2], f"{orders[0]}i4")
    second = np.array([1, 2 + (1 << 20)], f"{orders[1]}i4")
    answer = bit_difference([first], [second], (2,))
    assert [(element.index, element.bits) for element in answer.first] == [((1,), (20,))]
