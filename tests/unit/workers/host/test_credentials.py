"""Credentials are recognised, refused, and not shown."""

from typing import Any

import pytest

from workers.errors import UsageError
from workers.host.credentials import masked, masked_values, refuse_in_options, refuse_in_url

CANARY = "hunter2Canary"


@pytest.mark.parametrize(
    "url",
    [
        f"s3://AKIA:{CANARY}@bucket/run.zarr",
        f"s3://AKIA:abc/{CANARY}/+x@bucket/run.zarr",
        f"https://user:{CANARY}@host:9000/run.zarr",
        f"simplecache::s3://AKIA:{CANARY}@bucket/run.zarr",
        f"https://host/run.zarr?X-Amz-Signature={CANARY}",
        f"https://host/run.zarr?a=1&sig={CANARY}&b=2",
        f"abfs://c@account.dfs/run.zarr?access_token={CANARY}",
    ],
)
def test_a_url_with_credentials_is_refused_without_printing_them(url: str) -> None:
    with pytest.raises(UsageError, match="holds credentials") as raised:
        refuse_in_url(url)
    assert CANARY not in f"{raised.value.message} {raised.value.hint}"
    assert CANARY not in masked(f"cannot open {url}: refused")


@pytest.mark.parametrize(
    "url",
    [
        "/data/a:b@c",
        "s3://bucket/run.zarr",
        "s3://bucket/at@home",
        "http://host:9000/at@home",
        "abfs://container@account.dfs.core.windows.net/run.zarr",
        "tls://10.0.0.1:8786",
        "https://host/x?page=3",
    ],
)
def test_a_url_without_is_not(url: str) -> None:
    refuse_in_url(url)
    assert masked(url) == url


@pytest.mark.parametrize(
    "options",
    [
        {"secret": CANARY},
        {"key": CANARY},
        {"client_kwargs": {"aws_session_token": CANARY}},
        {"layers": [{"password": CANARY}]},
        {"endpoint_url": f"https://user:{CANARY}@host"},
    ],
)
def test_options_with_credentials_are_refused_and_masked(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="looks like a credential") as raised:
        refuse_in_options(options)
    assert CANARY not in f"{raised.value.message} {raised.value.hint}"
    assert CANARY not in str(masked_values(options))


def test_options_without_are_kept() -> None:
    options = {"anon": True, "SSEKMSKeyId": "alias", "client_kwargs": {"endpoint_url": "http://h:1"}}
    refuse_in_options(options)
    assert masked_values(options) == options
