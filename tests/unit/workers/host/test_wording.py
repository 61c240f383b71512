"""Words of messages."""

from workers.model import counted


def test_a_noun_agrees_with_its_count() -> None:
    assert [counted(count, "object") for count in range(3)] == ["0 objects", "1 object", "2 objects"]
