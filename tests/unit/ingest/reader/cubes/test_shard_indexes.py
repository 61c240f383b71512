"""What is known of the indexes of objects stays bounded."""

from ingest.reader.cubes.shard_indexes import ShardIndexes


def test_the_index_that_was_not_asked_for_the_longest_goes() -> None:
    indexes = ShardIndexes(limit=2)
    indexes.keep("a", b"1")
    indexes.keep("b", b"2")
    assert indexes.get("a") == b"1"
    indexes.keep("c", b"3")
    assert [indexes.get(name) for name in "abc"] == [b"1", None, b"3"]
