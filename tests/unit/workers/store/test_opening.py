"""What a user typed becomes one address, and an address becomes one store per process."""

from pathlib import Path

import pytest

from workers.errors import UsageError
from workers.store.opening import open_objects, resolve


@pytest.mark.parametrize("name", ["secret", "aws_secret_access_key", "password", "token", "account_key"])
def test_credentials_do_not_go_into_an_address(name: str) -> None:
    """An address is sent to every worker and shown to users."""
    with pytest.raises(UsageError, match=name):
        resolve("s3://bucket", {name: "x"})


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
