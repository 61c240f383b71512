"""What stands around payloads arrives as it was read, whoever passes it on."""

import pickle

import pytest

from workers.tasks.around import AroundPayloads, LeadAndTail


@pytest.mark.parametrize("around", [[("", "")], [("", ""), None, ("lead" * 100, "tail"), ("\x80", "\xff")]])
def test_texts_come_back_from_a_pickle(around: list[LeadAndTail | None]) -> None:
    held = AroundPayloads.of(range(10, 10 + len(around)), around)
    assert held is not None
    expected = {row: texts for row, texts in enumerate(around, 10) if texts is not None}
    assert held.by_row == expected
    passed_on = pickle.loads(pickle.dumps(held))  # noqa: S301  (its own)
    arrived = pickle.loads(pickle.dumps(passed_on))  # noqa: S301  (its own)
    assert arrived.by_row == expected


def test_what_is_passed_on_stays_packed() -> None:
    held = AroundPayloads.of(range(1000), [("PK" * 1000, "")] * 1000)
    packed = pickle.dumps(held)
    assert len(packed) < 100_000
    assert pickle.dumps(pickle.loads(packed)) == packed  # noqa: S301  (its own)


@pytest.mark.parametrize("around", [[], [None, None]])
def test_without_texts_nothing_is_held(around: list[None]) -> None:
    assert AroundPayloads.of(range(len(around)), around) is None
