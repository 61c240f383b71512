"""`dump-ingest serve` as it is typed: what it refuses before it listens."""

from pathlib import Path

import pytest

from tests.cli import Answer


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--listen", "0.0.0.0:0"), "open to other hosts"),
        (("--listen", "nowhere"), "is not an address"),
        (("--base-path", "/a b"), "is not a base path"),
        (("--cache", "much"), "--cache"),
        (("--token-file", "absent"), "cannot read the token"),
        (("--watchers", "node1"), "--watchers: 'node1' is not an address"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    nan_store: Path, answer: Answer, options: tuple[str, ...], words: str
) -> None:
    assert words in answer("serve", nan_store, *options, code=2).stderr


def test_a_place_without_stores_is_refused(tmp_path: Path, answer: Answer) -> None:
    assert "no dump-ingest store" in answer("serve", tmp_path, "--listen", "127.0.0.1:0", code=2).stderr
