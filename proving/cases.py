"""All cases: products of programs, options, faults and ways to dump."""

from __future__ import annotations

from collections.abc import Iterator

from proving.case import Case, Run


def all_cases(seed: int = 0) -> list[Case]:
    """Return every case; `seed` is added to all seeds of programs."""
    return [*_healthy(seed), *_faults(seed)]


def _healthy(seed: int) -> Iterator[Case]:
    yield Case("transformer", Run("transformer", seed=seed))


def _faults(seed: int) -> Iterator[Case]:
    run = Run("transformer", seed=seed, steps=4, fault="eps of one norm")
    yield Case("eps", run, Run("transformer", seed=seed, steps=4))
