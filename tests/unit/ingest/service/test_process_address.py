"""Where a running process serves its metrics."""

import pytest

from ingest.service.live_watcher import process_address
from workers.errors import UsageError


@pytest.mark.parametrize(
    "url", ["http://host:9108", "http://host:9108/", "http://host:9108/metrics?x=1", "host:9108"]
)
def test_a_path_is_left_out_and_the_scheme_may_be(url: str) -> None:
    assert process_address(url) == "http://host:9108"


def test_ipv6_and_https() -> None:
    assert process_address("https://[::1]:9108/steps") == "https://[::1]:9108"


@pytest.mark.parametrize(
    "url", ["", "host", "host:metrics", ":9108", "file:///etc/passwd", "http://", "http://[", "s3://runs/a"]
)
def test_what_is_not_the_address_of_a_web_server_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not the address of a watcher or consolidator") as refused:
        process_address(url)
    assert "--from HOST:PORT" in str(refused.value.hint)
