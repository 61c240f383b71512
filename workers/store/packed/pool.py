"""The pool of a step: arrays that its ranks share, each named by a digest of its content.

    pool/step_{s}/{sha256}/{dtype}/zarr.json
    pool/step_{s}/{sha256}/{dtype}/c/0

An array in the pool is one shard, and belongs to no rank: commits list the arrays that they refer to. See
docs/design/016-shared-shards.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store.model import Count

POOL = "pool"
#: The object that holds the elements of an array in the pool, relative to it.
SHARD = "c/0"
#: The metadata of such an array, relative to it; written after the shard.
NODE = "zarr.json"
#: An array that is younger is referred to as it is; an older one is written again, in seconds.
REUSE_S = 3600.0
#: gc leaves an array alone for at least this long after it was written, in seconds. The difference between
#: the two is the time that a rank has between finding an array and committing.
GRACE_S = 6 * 3600.0
#: How far the clocks of a host and of the store may be apart, in seconds: otherwise gc refuses, and no array
#: counts as young.
MAX_SKEW_S = 600.0
#: The names of generations, see `without_pool`.
GENERATION = re.compile(r"[0-9a-f]{32}(-[0-9a-f]{16})?")
_PATH = re.compile(r"pool/step_(0|[1-9][0-9]{0,18})/[0-9a-f]{64}/[a-z0-9_]+")


@dataclass(frozen=True, slots=True)
class PooledArray:
    """What a commit says about an array in the pool that it refers to."""

    nbytes: Count
    node: dict[str, Any]


def is_pooled(path: str) -> bool:
    """Return whether the label `array` of a row names an array in the pool, rather than in its generation."""
    return path.startswith(f"{POOL}/")


def without_pool(fingerprint: str) -> str:
    """Return the name that a generation would have if it did not use the pool; its own if it does not.

    A generation that uses the pool is named `{fingerprint of the listing}-{digest of the packing}`.
    """
    return fingerprint.partition("-")[0]


def pool_of(key: StepKey) -> str:
    """Return the prefix of the pool that a step of any rank may refer to."""
    return f"{POOL}/step_{key.step}"


def step_of(path: str) -> int | None:
    """Return the step whose pool has an array, given by its path; None if this is not such a path."""
    match = _PATH.fullmatch(path)
    return int(match[1]) if match else None


def name_in(path: str) -> str:
    """Return the name of an array in the pool, given by its path."""
    return path.split("/")[2]


def refuse_foreign(key: StepKey, path: str) -> None:
    """Check that a step may refer to an array in the pool.

    Raises:
        DamagedStore: it is the path of something else, or in the pool of another step.
    """
    if key.step is None or step_of(path) != key.step:
        raise DamagedStore(f"{key}: {path!r:.120} is not an array in the pool of the step")
