"""`dump-ingest serve` as it is typed: what it refuses before it listens; its API against other commands."""

import shutil
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.cli import Answer
from tests.page_server import RunningPage


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


def test_the_api_answers_what_commands_print(nan_store: Path, tmp_path: Path, answer: Answer) -> None:
    root = tmp_path / "runs"
    for run in ("a.zarr", "b.zarr"):
        shutil.copytree(nan_store, root / run)
    name = "Log.Default_net-LogLoss_Log-op0.output.0"
    with RunningPage(root) as page:
        api = "/api/v1/runs/a.zarr"
        for at in ((), ("--at", "0,:2")):
            shown = answer("show", root / "a.zarr", name, "--rank", "1", "--step", "2", *at, "--json").json
            query = f"rank=1&step=2&name={name}" + (f"&at={quote(at[1])}" if at else "")
            assert page.get(f"{api}/tensor?{query}").json == shown
        sides = [f"{root}/a.zarr@rank=1,step=2", f"{root}/b.zarr@rank=1,step=2"]
        compared = answer("compare", *sides, "--json").json
        assert page.get(f"{api}/comparison?with=b.zarr&rank=1&step=2").json == compared
        whole = answer("compare", root / "a.zarr", root / "b.zarr", "--include-partial", "--json").json
        assert page.get(f"{api}/comparison?with=b.zarr&partial=true").json == whole
        assert page.get(f"{api}/comparison?with=..%2Fb.zarr").status == 404
        wrong = page.get(f"{api}/tensor?rank=1&step=2&name={name}&at=x")
        assert (wrong.status, "x" in wrong.json["error"]["message"]) == (404, True)
