"""Envelopes arrive as they were read, whoever passes them on."""

import pickle

import pytest

from workers.tasks.envelopes import Envelope, Envelopes


@pytest.mark.parametrize(
    "texts", [[("", "")], [("", ""), None, ("lead" * 100, "tail"), ("\x80", "\xff"), ("", "\n"), ("é", "")]]
)
def test_texts_come_back_from_a_pickle(texts: list[tuple[str, str] | None]) -> None:
    envelopes = [sides and Envelope(bytearray("".join(sides), "latin-1"), len(sides[0])) for sides in texts]
    held = Envelopes.of(range(10, 10 + len(texts)), envelopes)
    assert held is not None
    expected = {row: sides for row, sides in enumerate(texts, 10) if sides is not None}
    arrived = pickle.loads(pickle.dumps(held))  # noqa: S301  (its own)
    for some in (held, arrived):
        assert dict(some.texts()) == expected
        assert some.rows == tuple(expected)


def test_what_is_alike_is_passed_on_in_few_bytes() -> None:
    held = Envelopes.of(range(1000), [Envelope(bytearray(b"PK" * 1000), 2000)] * 1000)
    assert len(pickle.dumps(held)) < 100_000


@pytest.mark.parametrize("envelopes", [[], [None, None]])
def test_without_envelopes_nothing_is_held(envelopes: list[None]) -> None:
    assert Envelopes.of(range(len(envelopes)), envelopes) is None
