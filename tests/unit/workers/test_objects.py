"""The object seam, on the local directory and in memory: one contract."""

import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from workers.errors import StoreUnavailable, UsageError
from workers.store.model import StoreAddress
from workers.store.objects import ObjectStore
from workers.store.opening import connect, open_objects, resolve


@pytest.fixture(params=["directory", "directory [odd] *name?", "file URL", "memory"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    name = uuid.uuid4().hex
    match request.param:
        case "memory":
            yield connect(resolve(f"memory://{name}"))
            fsspec.filesystem("memory").rm(f"/{name}", recursive=True)
        case "file URL":
            yield connect(resolve(f"file://{tmp_path}/store"))
        case directory:
            yield connect(resolve(str(tmp_path / directory)))


def test_objects_come_back(objects: ObjectStore) -> None:
    objects.put("a/b/c", b"one")
    objects.put_many({"a/b/d": b"two", "e": b""})
    assert objects.get("a/b/c") == b"one"
    assert objects.get_many(["a/b/c", "a/b/d", "e", "missing"]) == {
        "a/b/c": b"one",
        "a/b/d": b"two",
        "e": b"",
    }
    assert objects.get_many(["a/b/d"]) == {"a/b/d": b"two"}
    assert objects.get_many([]) == {}


def test_put_replaces(objects: ObjectStore) -> None:
    objects.put("a", b"long content")
    objects.put("a", b"new")
    assert objects.get("a") == b"new"


def test_what_is_not_there_is_none(objects: ObjectStore) -> None:
    objects.put("here", b"")
    assert objects.get("gone") is None
    assert objects.get_range("gone", -4) is None
    assert objects.get_range("gone", 0, 4) is None
    assert objects.get_many(["gone", "gone too"]) == {}
    assert objects.children("gone") == []
    assert objects.sizes("gone") == {}


def test_ranges(objects: ObjectStore) -> None:
    objects.put("a", b"0123456789")
    assert objects.get_range("a", 2, 5) == b"234"
    assert objects.get_range("a", -3) == b"789"
    assert objects.get_range("a", -30) == b"0123456789"
    assert objects.get_range("a", 8, 20) == b"89"


def test_children_and_sizes(objects: ObjectStore) -> None:
    objects.put_many({"a/b/c": b"1", "a/d": b"22", "e": b"333"})
    assert objects.children() == ["a", "e"]
    assert objects.children("a") == ["b", "d"]
    assert objects.sizes("a") == {"b/c": 1, "d": 2}
    assert objects.sizes() == {"a/b/c": 1, "a/d": 2, "e": 3}


def test_failed_write_leaves_the_old_object_and_no_debris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader never sees half of an object, not even after a crash."""
    objects = connect(resolve(str(tmp_path)))
    objects.put("a", b"old")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(StoreUnavailable, match="No space left"):
        objects.put("a", b"new")
    assert objects.get("a") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_objects_are_readable_for_others(tmp_path: Path) -> None:
    """A store on a shared file system is read by colleagues: temporary files must not make it private."""
    connect(resolve(str(tmp_path))).put("a", b"")
    usual = tmp_path / "usual"
    usual.touch()
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def test_error_names_the_object(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreUnavailable, match="file/below"):
        connect(resolve(str(tmp_path))).put("file/below", b"")


@pytest.mark.parametrize("name", ["secret", "aws_secret_access_key", "password", "token", "account_key"])
def test_credentials_do_not_go_into_an_address(name: str) -> None:
    """An address is sent to every worker and shown to users."""
    with pytest.raises(UsageError, match=name):
        resolve("s3://bucket", {name: "x"})


def test_unknown_protocol_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="nonsense"):
        connect(StoreAddress("nonsense://somewhere"))


def test_same_directory_is_the_same_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("run.zarr") == resolve(str(tmp_path / "run.zarr"))
    assert resolve("s3://b/p/") == resolve("s3://b/p")
    assert open_objects(resolve("run.zarr")) is open_objects(resolve(str(tmp_path / "run.zarr")))


@pytest.mark.parametrize("url", ["", "s3://", "memory://", "file:///", "s3:/bucket/run.zarr"])
def test_a_torn_url_is_no_local_directory(url: str) -> None:
    with pytest.raises(UsageError, match="names no place"):
        resolve(url)


@pytest.mark.parametrize("url", ["run.zarr", "file://run.zarr", Path("run.zarr")])
def test_a_relative_store_is_resolved_once_and_for_all(
    url: str | Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Workers have working directories of their own.
    monkeypatch.chdir("/usr")
    assert resolve(url).url == "/usr/run.zarr"


def test_listings_have_sizes_and_times(objects: ObjectStore) -> None:
    objects.put_many({"a/b/c": b"1", "a/d": b"22", "e": b"333"})
    found = objects.listed("a")
    assert {key: one.nbytes for key, one in found.items()} == {"b/c": 1, "d": 2}
    assert all(abs(time.time() - one.modified_at) < 60 for one in found.values())
    assert objects.listed("e")[""].nbytes == 3
    assert objects.listed().keys() == {"a/b/c", "a/d", "e"}
    assert objects.listed("gone") == {}


def test_many_objects_go_at_once_whether_they_are_there_or_not(objects: ObjectStore) -> None:
    objects.put_many({f"a/b/{number}": b"" for number in range(50)} | {"a/c": b"stays"})
    objects.delete_many([f"a/b/{number}" for number in range(60)])
    objects.delete_many([])
    objects.prune("a/b")
    objects.prune("a")
    assert objects.children("a") == ["c"]
    objects.put("a/b/new", b"again")
    assert objects.get("a/b/new") == b"again"


def test_nothing_behind_a_link_is_listed_or_removed(tmp_path: Path) -> None:
    """A store is not trusted: a link in it may lead to anything."""
    precious = tmp_path / "home" / "file"
    precious.parent.mkdir()
    precious.write_bytes(b"precious")
    objects = connect(resolve(str(tmp_path / "store")))
    objects.put("a/b", b"")
    (tmp_path / "store" / "a" / "link").symlink_to(precious.parent)
    (precious.parent / "empty").mkdir()
    assert objects.listed("a").keys() == {"b", "link"}
    assert objects.listed("a/link") == {}
    objects.prune("a/link")
    objects.delete_many(list(objects.listed()))
    objects.prune("a")
    assert precious.read_bytes() == b"precious"
    assert (precious.parent / "empty").is_dir()
    assert not (tmp_path / "store" / "a").exists()
