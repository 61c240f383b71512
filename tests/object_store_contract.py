"""The contract of `ObjectStore`, as tests that every backend must pass.

A test module subclasses `ObjectStoreContract` with a name that pytest collects, and provides `objects`.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import fsspec
import pytest

from workers.store.objects import ObjectStore


@contextmanager
def memory_url() -> Iterator[str]:
    """Yield the URL of an empty place in memory, which is freed afterwards."""
    name = uuid.uuid4().hex
    files = fsspec.filesystem("memory")
    files.makedirs(f"/{name}")
    yield f"memory://{name}/store"
    files.rm(f"/{name}", recursive=True)


class ObjectStoreContract:
    """The tests of the contract; each begins with an empty store."""

    @pytest.fixture
    def objects(self) -> ObjectStore:
        """Return the store under test, without objects."""
        raise NotImplementedError

    def test_an_object_comes_back(self, objects: ObjectStore) -> None:
        objects.put("a/b/c", b"content")
        objects.put("a/b/d", bytearray(b"as a buffer"))
        objects.put("empty", b"")
        assert objects.get("a/b/c") == b"content"
        assert objects.get("a/b/d") == b"as a buffer"
        assert objects.get("empty") == b""

    def test_a_name_may_have_characters_that_are_patterns_elsewhere(self, objects: ObjectStore) -> None:
        names = ["a [b] *?", "a/c~d#e", "a/ä %20 +"]
        objects.put_many({name: name.encode() for name in names})
        assert objects.get_many(names) == {name: name.encode() for name in names}
        assert [objects.get(name) for name in names] == [name.encode() for name in names]

    def test_writing_again_replaces_an_object(self, objects: ObjectStore) -> None:
        objects.put("a", b"long content")
        objects.put("a", b"new")
        assert objects.get("a") == b"new"
        objects.put_many({"a": b"newer"})
        assert objects.get("a") == b"newer"

    def test_many_objects_come_back_in_the_order_they_are_named(self, objects: ObjectStore) -> None:
        contents = {f"many/{number}": bytes([number]) for number in range(100)}
        objects.put_many({**contents, "e": b""})
        keys = ["many/7", "gone", "e", "many/3", *contents]
        assert list(objects.get_many(keys).items()) == list(
            {key: contents.get(key, b"") for key in keys if key != "gone"}.items()
        )

    def test_no_keys_are_no_objects(self, objects: ObjectStore) -> None:
        objects.put_many({})
        objects.delete_many([])
        assert objects.get_many([]) == {}

    def test_an_object_in_pieces_is_there_when_it_is_closed(self, objects: ObjectStore) -> None:
        objects.put("a/b", b"before")
        new = objects.create("a/b")
        piece = bytearray(b"one ")
        new.write(piece)
        piece[:] = b"xxxx"
        new.write(b"two")
        assert objects.get("a/b") == b"before"
        new.close()
        new.drop()
        assert objects.get("a/b") == b"one two"

    def test_a_dropped_object_leaves_nothing(self, objects: ObjectStore) -> None:
        objects.put("a/other", b"")
        new = objects.create("a/b")
        new.write(b"piece")
        new.drop()
        assert objects.get("a/b") is None
        assert objects.children("a") == ["other"]

    def test_what_does_not_exist_is_a_miss(self, objects: ObjectStore) -> None:
        objects.put("here", b"")
        assert objects.get("gone") is None
        assert objects.get_range("gone", -4) is None
        assert objects.get_range("gone", 0, 4) is None
        assert objects.get_many(["gone", "gone too"]) == {}
        assert objects.children("gone") == []
        assert objects.sizes("gone") == {}
        assert objects.listed("gone") == {}

    def test_nothing_is_below_an_object(self, objects: ObjectStore) -> None:
        objects.put("here", b"")
        assert objects.get("here/below") is None
        assert objects.get_many(["here/below"]) == {}
        assert objects.get_range("here/below", -4) is None
        assert objects.children("here/below") == []
        objects.delete("here/below")
        assert objects.get("here") == b""

    @pytest.mark.parametrize(
        ("start", "stop", "expected"),
        [(2, 5, b"234"), (0, 1, b"0"), (4, None, b"456789"), (-3, None, b"789"), (-30, None, b"0123456789")],
    )
    def test_a_range_of_an_object(
        self, objects: ObjectStore, start: int, stop: int | None, expected: bytes
    ) -> None:
        objects.put("a", b"0123456789")
        assert objects.get_range("a", start, stop) == expected

    def test_a_range_ends_where_the_object_ends(self, objects: ObjectStore) -> None:
        objects.put("a", b"0123456789")
        assert objects.get_range("a", 8, 20) == b"89"

    def test_a_deleted_object_is_gone_and_deleting_it_again_does_nothing(self, objects: ObjectStore) -> None:
        objects.put_many({"a/b": b"", "a/c": b"stays"})
        objects.delete("a/b")
        objects.delete("a/b")
        objects.delete("never/there")
        assert objects.get("a/b") is None
        assert objects.children("a") == ["c"]

    def test_many_objects_are_deleted_whether_they_exist_or_not(self, objects: ObjectStore) -> None:
        objects.put_many({f"a/b/{number}": b"" for number in range(50)} | {"a/c": b"stays"})
        objects.delete_many([f"a/b/{number}" for number in range(60)])
        assert objects.listed("a").keys() == {"c"}
        assert objects.get("a/c") == b"stays"

    def test_pruning_leaves_objects_and_keeps_nobody_from_writing(self, objects: ObjectStore) -> None:
        objects.put_many({"a/b/c": b"", "a/d": b"stays"})
        objects.delete("a/b/c")
        objects.prune("a/b")
        objects.prune("a")
        objects.prune("never/there")
        assert objects.listed().keys() == {"a/d"}
        objects.put("a/b/new", b"again")
        assert objects.get("a/b/new") == b"again"

    def test_children_are_objects_and_prefixes_of_one_level(self, objects: ObjectStore) -> None:
        objects.put_many({"a/b/c": b"1", "a/d": b"22", "a/b/f/g": b"", "e": b"333"})
        assert objects.children() == ["a", "e"]
        assert objects.children("a") == ["b", "d"]

    def test_sizes_are_of_everything_below(self, objects: ObjectStore) -> None:
        objects.put_many({"a/b/c": b"1", "a/d": b"22", "e": b"333"})
        assert objects.sizes("a") == {"b/c": 1, "d": 2}
        assert objects.sizes() == {"a/b/c": 1, "a/d": 2, "e": 3}

    def test_listings_have_sizes_and_times(self, objects: ObjectStore) -> None:
        objects.put_many({"a/b/c": b"1", "a/d": b"22", "e": b"333"})
        listed = objects.listed("a")
        assert {key: stored.nbytes for key, stored in listed.items()} == {"b/c": 1, "d": 2}
        assert all(abs(time.time() - stored.modified_at) < 60 for stored in listed.values())
        assert objects.listed().keys() == {"a/b/c", "a/d", "e"}

    def test_an_object_is_listed_by_its_own_key(self, objects: ObjectStore) -> None:
        objects.put("e", b"333")
        assert objects.listed("e")[""].nbytes == 3

    def test_listings_show_what_others_have_written_since(self, objects: ObjectStore) -> None:
        objects.put("a/b", b"")
        assert (objects.children("a"), list(objects.sizes("a"))) == (["b"], ["b"])
        objects.put("a/c", b"")
        assert (sorted(objects.children("a")), sorted(objects.sizes("a"))) == (["b", "c"], ["b", "c"])
        objects.delete("a/b")
        assert (objects.children("a"), list(objects.listed("a"))) == (["c"], ["c"])

    def test_flushing_changes_nothing_that_readers_see(self, objects: ObjectStore) -> None:
        objects.put("a/b", b"content")
        objects.flush("a")
        objects.flush("a/b")
        objects.flush("")
        assert objects.get("a/b") == b"content"
        assert objects.children() == ["a"]
