"""Which tensors may have marginals follows from the number of their elements alone."""

from itertools import pairwise

from workers.arrays.sketches.marginal_scope import LARGE_ELEMENTS, LEAST_ELEMENTS, MarginalScope


def test_each_scope_includes_the_one_before_it() -> None:
    sizes = (0, 1, LEAST_ELEMENTS - 1, LEAST_ELEMENTS, LARGE_ELEMENTS - 1, LARGE_ELEMENTS, 2**40)
    included = {scope: {size for size in sizes if scope.includes(size)} for scope in MarginalScope}
    assert [len(included[scope]) for scope in MarginalScope] == [0, 2, 4]
    assert all(included[smaller] < included[larger] for smaller, larger in pairwise(MarginalScope))
