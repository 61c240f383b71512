"""The bytes around payloads arrive as they were read, whoever passes them on."""

import pickle

import pytest

from workers.tasks.around import AroundPayloads


@pytest.mark.parametrize("around", [[], [None], [b"", None, b"lead and tail" * 100, b"\x80\xff"]])
def test_bytes_come_back_from_a_pickle(around: list[bytes | None]) -> None:
    held = AroundPayloads.of(range(10, 10 + len(around)), around)
    expected = {row: content for row, content in enumerate(around, 10) if content is not None}
    assert held.by_row == expected
    passed_on = pickle.loads(pickle.dumps(held))  # noqa: S301  (its own)
    arrived = pickle.loads(pickle.dumps(passed_on))  # noqa: S301  (its own)
    assert arrived.by_row == expected


def test_what_is_passed_on_stays_packed() -> None:
    held = AroundPayloads.of(range(1000), [b"PK" * 1000] * 1000)
    packed = pickle.dumps(held)
    assert len(packed) < 100_000
    assert pickle.dumps(pickle.loads(packed)) == packed  # noqa: S301  (its own)


def test_nothing_is_held_by_default() -> None:
    assert AroundPayloads().by_row == {}
