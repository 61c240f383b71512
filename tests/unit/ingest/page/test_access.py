"""Who may look."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingest.page.server import Access, Listen, access_for
from workers.errors import UsageError

LOOPBACK, EVERYWHERE = Listen("127.0.0.1", 8000), Listen("0.0.0.0", 8000)  # noqa: S104  (what is to be refused)


@pytest.mark.parametrize("words", ["8000", "host", ":1", "host:x", "host:70000"])
def test_an_address_is_host_and_port(words: str) -> None:
    with pytest.raises(UsageError, match="not an address"):
        Listen.parse(words)


def test_other_hosts_need_a_proof_or_a_decision(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="open to other hosts") as refused:
        access_for(EVERYWHERE, None, None, None, is_open=False)
    assert "--token-file" in (refused.value.hint or "")
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    assert access_for(EVERYWHERE, path, None, None, is_open=False).token == path.read_text().strip()
    assert access_for(EVERYWHERE, None, "X-User", None, is_open=False).header == "X-User"
    assert access_for(EVERYWHERE, None, None, None, is_open=True) == Access()


def test_a_token_is_long_enough_and_readable(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(UsageError, match="cannot read the token"):
        access_for(LOOPBACK, path, None, None, is_open=False)
    path.write_text("short")
    with pytest.raises(UsageError, match="fewer than 16"):
        access_for(LOOPBACK, path, None, None, is_open=False)
