"""`dump-ingest serve` as it is typed: what it refuses before it listens; its API against other commands."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from ingest.questions.heatmap import heatmap_rows
from ingest.questions.trend import TrendAnswer
from ingest.reader.step import Step, step_row
from ingest.reader.tensor import Tensor
from tests.cli import Answer
from tests.page_server import RunningPage
from tests.stores import MadeDump, ingest_directly, tensor_name
from workers.store import strict_json

LOG = "Log.Default_net-LogLoss_Log-op0.output.0"
#: Views, and what the API calls the answers that they show.
LOG_PLACE = f"rank=1&step=2&name={LOG}"
VIEWS = (
    ("incidents", ["incidents"]),
    ("incidents?rank=1&step=2", ["incidents?rank=1&step=2"]),
    ("matrix", ["matrix"]),
    ("matrix?stat=findings&ranks=1", ["matrix?stat=findings&ranks=1"]),
    (
        "matrix?stat=max&name=*Log*&steps=2-3&ranks=0-1",
        ["matrix?stat=max&name=*Log*&steps=2-3&ranks=0-1"],
    ),
    ("cell?rank=1&step=2", ["tensors?rank=1&step=2"]),
    (
        f"tensor?{LOG_PLACE}",
        [f"tensor?{LOG_PLACE}", f"values?{LOG_PLACE}", f"precision?{LOG_PLACE}"],
    ),
    ("live", ["steps"]),
    ("compare?with=b.zarr", ["comparison?with=b.zarr&step=3&partial=1", "growth?with=b.zarr&rank=0"]),
    (
        "compare?with=b.zarr&rank=1&step=2&stat=max",
        ["comparison?with=b.zarr&rank=1&step=2&partial=1", "growth?with=b.zarr&rank=1&stat=max"],
    ),
)


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


def test_the_api_answers_what_commands_print(nan_store: Path, tmp_path: Path, answer: Answer) -> None:
    root = tmp_path / "runs"
    for run in ("a.zarr", "b.zarr"):
        shutil.copytree(nan_store, root / run)
    with RunningPage(root) as page:
        api = "/api/v1/runs/a.zarr"
        for at in ((), ("--at", "0,:2")):
            shown = answer("show", root / "a.zarr", LOG, "--rank", "1", "--step", "2", *at, "--json").json
            query = f"rank=1&step=2&name={LOG}" + (f"&at={quote(at[1])}" if at else "")
            assert page.get(f"{api}/tensor?{query}").json == shown
        sides = [f"{root}/a.zarr@rank=1,step=2", f"{root}/b.zarr@rank=1,step=2"]
        compared = answer("compare", *sides, "--json").json
        assert page.get(f"{api}/comparison?with=b.zarr&rank=1&step=2").json == compared
        whole = answer("compare", root / "a.zarr", root / "b.zarr", "--include-partial", "--json").json
        assert page.get(f"{api}/comparison?with=b.zarr&partial=true").json == whole
        assert page.get(f"{api}/comparison?with=..%2Fb.zarr").status == 404
        wrong = page.get(f"{api}/tensor?rank=1&step=2&name={LOG}&at=x")
        assert (wrong.status, "x" in wrong.json["error"]["message"]) == (404, True)


@pytest.fixture(scope="module")
def runs(sketched_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPage]:
    """The page of the same run twice, and of one with a channel that stands out."""
    root = tmp_path_factory.mktemp("runs")
    for run in ("a.zarr", "b.zarr"):
        (root / run).symlink_to(sketched_store)
    dump = MadeDump(tmp_path_factory.mktemp("dump"))
    values = np.random.default_rng(0).standard_normal((300, 260)).astype("<f4")
    values[:, 100] *= 1e6
    dump.add(values, tensor_name("Mul.m[1]"))
    ingest_directly(dump.root, root / "odd.zarr", sketches=True)
    with RunningPage(root) as page:
        yield page


def shown_lines(page: RunningPage, view: str) -> tuple[list[str], list[str]]:
    """Return the command lines below a view, and the lines of Python."""
    got = page.get(view)
    assert got.status == 200, got.text
    shell, python = got.lines
    return shell.splitlines(), python.splitlines()


def words_of(line: str) -> list[str]:
    """Return the words that a shell makes of a line, without the first one."""
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True
    )
    return done.stdout.split("\0")[1:-1]


def as_json(value: Any) -> Any:
    """Return what Python answered as JSON has it."""
    if isinstance(value, list | tuple):
        plain: Any = [as_json(member) for member in value]
    elif isinstance(value, Step):
        plain = step_row(value)
    else:
        plain = value.to_dict() if hasattr(value, "to_dict") else value
    return json.loads(strict_json.dumps(plain))


def assert_lines_answer(page: RunningPage, answer: Answer, run: str, view: str, questions: list[str]) -> None:
    """Run every line below a view, and compare what it gives with the answers of the API."""
    shell, python = shown_lines(page, f"/runs/{run}/{view}")
    names: dict[str, Any] = {}
    exec("\n".join(python[:2]), names)  # noqa: S102  (as a reader of the page does)
    expressions = python[2:]
    # What is drawn over the steps has no question of its own: its lines are the last ones.
    for line, expression in zip(shell[len(questions) :], expressions[len(questions) :], strict=True):
        value = eval(expression, names)  # noqa: S307  (as below)
        rows = TrendAnswer(value).to_json() if words_of(line)[0] == "trend" else heatmap_rows(value)
        assert answer(*words_of(line), "--json").json == as_json(rows), line
    for line, expression, question in zip(shell, expressions, questions, strict=False):
        expected = page.get(f"/api/v1/runs/{run}/{question}").json
        assert answer(*words_of(line), "--json").json == expected, line
        value = eval(expression, names)  # noqa: S307  (as a reader of the page does)
        if isinstance(value, Tensor):
            expected = {name: expected[name] for name in value.to_dict()}
        assert as_json(value) == expected, expression


@pytest.mark.parametrize(("view", "questions"), VIEWS, ids=[view for view, _ in VIEWS])
def test_the_lines_below_a_view_give_its_answer(
    runs: RunningPage, answer: Answer, view: str, questions: list[str]
) -> None:
    assert_lines_answer(runs, answer, "a.zarr", view, questions)
