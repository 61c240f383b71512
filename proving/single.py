"""Cases of programs in one process, and of data parallelism over the same: products, not lists."""

from __future__ import annotations

from collections.abc import Iterator

from proving.case import Case, Run


def cases(seed: int) -> Iterator[Case]:
    """Yield every case."""
    yield Case("transformer", Run("transformer", seed=seed))
    run = Run("transformer", seed=seed, steps=4, fault="eps of one norm")
    yield Case("transformer, eps", run, Run("transformer", seed=seed, steps=4))
    run = Run("transformer", seed=seed, ranks=2, at=5, on=(1,), fault="one bit of a parameter")
    yield Case(
        "transformer on 2 ranks, one bit", run, Run("transformer", seed=seed, ranks=2), source="answers B2"
    )
