"""Deletes announcements of changed commits when the cubes are up to date with them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from workers.model import StepKey
from workers.store.announcements import BEGUN, DONE, REMOVED, path_of
from workers.store.commit import Commit
from workers.store.objects import ObjectStore


def clear_announcements(
    objects: ObjectStore,
    announced: Mapping[StepKey, Sequence[str]],
    commits: Mapping[StepKey, Commit],
    damaged: Collection[StepKey],
) -> None:
    """Delete the announcements that are dealt with.

    These are announcements of commits that were read, of commits that others have replaced since, of removals
    that have happened, and of changes that were done before the commits were read.

    Args:
        objects: the store.
        announced: from `read_announcements`.
        commits: the commits that were read afterwards.
        damaged: the steps whose commits could not be read.
    """
    settled = [
        (key, word)
        for key, words in announced.items()
        for word in _settled(words, commits.get(key), is_damaged=key in damaged)
    ]
    # What says that a change is done goes last: that it has begun, alone, would stand for good.
    for is_last in (False, True):
        objects.delete_many([path_of(key, word) for key, word in settled if word.startswith(DONE) == is_last])


def _settled(words: Sequence[str], committed: Commit | None, *, is_damaged: bool) -> Iterator[str]:
    """Yield the announcements of one step that are dealt with."""
    for word in words:
        if word.startswith(DONE):
            yield f"{BEGUN}{word.removeprefix(DONE)}"
            yield word
        elif word == REMOVED:
            # A removal is announced before it happens: the announcement stands until it has happened.
            if committed is None and not is_damaged:
                yield word
        elif committed is not None and word in committed.record.generations:
            yield word
