"""Names that resemble those of the directories of ranks and steps, and how these directories are reported."""

from __future__ import annotations

import re

from ingest.layouts.base import Problem

#: A number as people may write one, in any digits. What a dump system writes fits the fields of patterns.
_NUMBER = re.compile(r"[-+]?\d+")
#: How names begin that resemble those of the directories of ranks.
_LIKE_RANK = re.compile(r"rank[-+_ ]?\d.*", re.DOTALL | re.IGNORECASE)
_NO_RANK = "is not how a dump names the directory of a rank"
_RANK_HINT = (
    "Ranks go from 0 to 999999999, without a sign, in ASCII digits, and without zeros in front. Rename the "
    "directory, and run the same command again."
)
_NO_STEP = "is not how a dump names a step"
_STEP_HINT = (
    "Steps have at most 18 ASCII digits and no sign. The store keeps these files with the run files of their "
    "rank, as files. Rename the directory, and run the same command again."
)


def is_like_rank(name: str) -> bool:
    """Return whether a name begins like that of the directory of a rank."""
    return _LIKE_RANK.fullmatch(name) is not None


def is_like_step(name: str) -> bool:
    """Return whether a name is a number, as people may write one."""
    return _NUMBER.fullmatch(name) is not None


def misnamed_rank(of_rank: str, path: str) -> Problem:
    """Return the problem of a directory that resembles that of a rank, or is below `of_rank`, which does."""
    number = of_rank.rpartition("/")[2].removeprefix("rank").removeprefix("_")
    if _NUMBER.fullmatch(number) is None:
        return Problem(path, _NO_RANK, misnamed=True)
    return Problem(of_rank, _NO_RANK, _RANK_HINT, left_out=True, misnamed=True)


def misnamed_step(path: str) -> Problem:
    """Return the problem of a directory that resembles that of a step."""
    return Problem(path, _NO_STEP, _STEP_HINT, left_out=True, misnamed=True)
