"""Every example in README and docs runs and prints what the page shows, and every link has a target."""

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingest.settings import load
from tests.cli import run, run_here
from tests.pools import PooledRun, replicas, small_pools
from tests.stores import ingest_directly, unpack

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_TRAINING, _JAX = "# train.py\n", "# jax_train.py\n"
_BOX = "# box.py\n"
#: Its examples build on one another, as in a notebook; below each stands what it prints.
GUIDE = ROOT / "docs" / "python.md"
_CELL = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
_END_OF_CELL = "-- end of cell --"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: A link into the repository: the target, which is empty for a link within the page, and the anchor.
_LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
#: Sizes vary slightly between versions of the compressors.
_SIZE = re.compile(r" *\d+(\.\d+)? [KMG]iB")
#: The id of an incident contains the place of the store.
_ID = re.compile(r"\b[0-9a-f]{16}\b")
_HOST = re.compile(r", host \S+")


@dataclass(frozen=True)
class Example:
    """One fenced block of a page."""

    page: Path
    language: str
    text: str


def examples(*languages: str) -> list[Example]:
    """Return the fenced blocks of all pages that are in one of these languages."""
    return [
        Example(page, language, text)
        for page in PAGES
        for language, text in _FENCE.findall(page.read_text())
        if language in languages
    ]


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a user who follows the pages: the dumps `dump` and `ascend`, and a store of each."""
    directory = tmp_path_factory.mktemp("docs")
    shutil.copytree(unpack("nan-log-2rank", directory) / "dump", directory / "dump")
    shutil.copytree(unpack("cann-bin-synthetic", directory) / "torchair", directory / "ascend")
    ingest_directly(directory / "ascend", directory / "ascend.zarr")
    run("ingest", "dump", "--store", "run.zarr", cwd=directory, env={"DUMP_INGEST_MARGINALS": "all"})
    with pytest.MonkeyPatch.context() as monkeypatch:
        small_pools(monkeypatch)
        pooled = PooledRun(directory / "pooled", store=str(directory / "pooled.zarr"))
        pooled.begin(2, replicas(0))
        pooled.take(2, 1, replicas(1))
    return directory


def without_local(text: str) -> str:
    """Return an output without what differs from one machine to another."""
    return _HOST.sub(", host HOST", _ID.sub("ID", _SIZE.sub(" SIZE", text)))


@pytest.mark.dask
@pytest.mark.parametrize(
    "example",
    [example for example in examples("console") if not re.search("torch.zarr|jax.zarr|box.py", example.text)],
    ids=lambda example: example.page.name,
)
def test_a_console_example_prints_what_the_page_shows(
    sandbox: Path, example: Example, tmp_path: Path
) -> None:
    """A user who types the commands of a page sees the output that the page shows."""
    for block in example.text.split("$ dump-ingest ")[1:]:
        command, _, shown = block.partition("\n")
        arguments = shlex.split(command)
        if arguments[0] == "ingest":
            # Into a new store, as a user does the first time.
            arguments = [str(tmp_path / "run.zarr") if a == "run.zarr" else a for a in arguments]
        # `ingest` starts its workers as copies of a process that has a single thread.
        runner = run if arguments[0] == "ingest" else run_here
        done = runner(*arguments, cwd=sandbox)
        assert without_local(done.stdout) == without_local(shown)


PYTHON = [
    example
    for example in examples("python")
    if example.page != GUIDE and not example.text.startswith((_TRAINING, _JAX, _BOX))
]
#: Runs each example in names of its own, and prints what it raised by its number.
_RUN_ALL = """
import json, sys, traceback
raised = []
for text in json.load(sys.stdin):
    try:
        exec(compile(text, "example", "exec"), {"__name__": "__main__"})
        raised.append("")
    except BaseException:
        raised.append(traceback.format_exc())
sys.stderr.write(json.dumps(raised))
"""


@pytest.fixture(scope="module")
def raised(sandbox: Path) -> list[str]:
    """What each Python example raised; "" for nothing. They share one new interpreter."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _RUN_ALL],
        cwd=sandbox,
        input=json.dumps([example.text for example in PYTHON]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: list[str] = json.loads(done.stderr.splitlines()[-1])
    return answers


@pytest.mark.parametrize("number", range(len(PYTHON)), ids=lambda number: PYTHON[number].page.name)
def test_a_python_example_runs(number: int, raised: list[str]) -> None:
    assert raised[number] == "", PYTHON[number].text


@pytest.mark.parametrize(("needs", "begins"), [("torch", _TRAINING), ("jax", _JAX)])
def test_the_recorded_program_of_the_page_tells_its_line(
    needs: str, begins: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Whoever copies the training loop of the page, ingests and asks, sees the answer of the page."""
    request.getfixturevalue(needs)
    (training,) = (example for example in examples("python") if example.text.startswith(begins))
    (asked,) = (example for example in examples("console") if f"{needs}.zarr" in example.text)
    (tmp_path / "train.py").write_text(training.text)
    subprocess.run([sys.executable, "-W", "error", "train.py"], cwd=tmp_path, check=True)
    (dump,) = tmp_path.glob("*-dump")
    ingest_directly(dump, tmp_path / f"{needs}.zarr")
    command, _, shown = asked.text.removeprefix("$ dump-ingest ").partition("\n")
    printed = run(*shlex.split(command), cwd=tmp_path).stdout
    assert printed.replace(f"{tmp_path}/train.py", begins.strip("# \n")) == shown


@pytest.mark.usefixtures("torch")
def test_the_black_box_of_the_page_saves_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = (example for example in examples("python") if example.text.startswith(_BOX))
    (shown,) = (example for example in examples("console") if "box.py" in example.text)
    (tmp_path / "box.py").write_text(program.text)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("box.py")
    assert f"$ python box.py\n{capsys.readouterr().out}" == shown.text


def test_the_guide_prints_what_it_shows_from_top_to_bottom(sandbox: Path) -> None:
    cells = _CELL.findall(GUIDE.read_text())
    script = "".join(f"{code}print({_END_OF_CELL!r})\n" for code, _ in cells)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=sandbox,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split(f"{_END_OF_CELL}\n")
    for (code, shown), output in zip(cells, printed, strict=False):
        assert output.strip() == shown.strip(), code


#: Values of the Helm chart have an image; the tests of the chart render them.
SETTINGS = [example for example in examples("yaml") if "\nimage:" not in f"\n{example.text}"]


@pytest.mark.parametrize("example", SETTINGS, ids=lambda example: example.page.name)
def test_a_settings_example_is_valid(example: Example, tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(example.text)
    assert load(path).settings.store


@pytest.mark.parametrize("example", examples("sh"), ids=lambda example: example.page.name)
def test_a_shell_example_names_commands_and_options_that_exist(example: Example) -> None:
    """These examples need hosts or buckets that a test does not have, so only their options are checked."""
    for line in example.text.splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["make"]:
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        if words[:1] != ["dump-ingest"]:
            continue
        offered = run_here(words[1], "--help", env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"}).stdout
        for option in (word for word in words if word.startswith("--")):
            assert option in offered, f"{words[1]} has no {option}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted({*PAGES, *ROOT.glob("*.md")}), ids=lambda page: page.name)
def test_links_lead_to_existing_files_and_headings(page: Path) -> None:
    for target, anchor in _LINK.findall(_FENCE.sub("", page.read_text())):
        path = page.parent / target if target else page
        assert os.path.exists(path), target  # noqa: PTH110  (a directory or a file)
        if anchor and path.suffix == ".md":
            assert anchor.lower() in anchors(path), f"{target}#{anchor}"


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    for name in load().settings.model_dump():
        assert f"`{name}`" in page, name
