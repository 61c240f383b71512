"""The project itself: designs, site and workflows."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import ingest

# What the design notes promise.


ROOT = Path(__file__).parents[3]


def test_every_test_that_a_note_names_is_there() -> None:
    named = {
        name
        for note in (ROOT / "docs" / "design").glob("*.md")
        for name in re.findall(r"`(test_\w+)`", note.read_text("utf-8"))
    }
    written = set[str]()
    for module in (ROOT / "tests").rglob("test_*.py"):
        written |= {module.stem, *re.findall(r"^def (test_\w+)\(", module.read_text("utf-8"), re.MULTILINE)}
    assert named
    assert named - written == set()


# What GitHub reads: workflows, forms, updates of dependencies; and the notes of a release.

GITHUB = ROOT / ".github"
PROGRAMS = Path(sys.executable).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
_USES = re.compile(r"^ +(?:- )?uses: (?P<action>[^@\s]+)(?P<pin>.*)$", re.MULTILINE)


def load(path: Path) -> dict[str, Any]:
    """Read as YAML 1.2 has it: `on` is a word there, and no truth."""
    return {("on" if key is True else key): value for key, value in yaml.safe_load(path.read_text()).items()}


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for name, job in load(path)["jobs"].items():
            yield f"{path.name}: {name}", job


def test_every_dependency_has_its_reason() -> None:
    note = (ROOT / "docs" / "design" / "023-dependencies.md").read_text("utf-8")
    explained = re.findall(r"^\| `([\w-]+)` \|", note, re.MULTILINE)
    assert explained == [re.split(r"[<>=!]", each)[0] for each in PROJECT["dependencies"]]
    assert set(PROJECT["optional-dependencies"]) == set(re.findall(r"`(\w+)`", note.split("\n\n")[2]))


def test_ci_runs_the_same_as_everybody_on_every_python_that_is_promised() -> None:
    ci = load(GITHUB / "workflows" / "ci.yml")
    test = ci["jobs"]["test"]
    promised = [name.rpartition(" :: ")[2] for name in PROJECT["classifiers"] if ":: Python :: 3." in name]
    assert test["strategy"]["matrix"]["python"] == promised
    assert test["steps"][-1] == {"run": ".ci/run"}
    assert ci["jobs"]["campaigns"]["steps"][-1] == {"run": ".ci/run campaigns"}
    assert "workflow_call" in ci["on"]
    assert load(GITHUB / "workflows" / "release.yml")["jobs"]["ci"]["uses"] == "./.github/workflows/ci.yml"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_and_say_their_version(path: Path) -> None:
    """A tag can be moved to other code; a commit cannot. Dependabot keeps both up to date."""
    for action, pin in _USES.findall(path.read_text()):
        if not action.startswith("./"):
            assert re.fullmatch(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+", pin), action


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_nothing_unless_a_job_says_so(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {}
    assert workflow["concurrency"]["group"]
    for name, job in workflow["jobs"].items():
        assert job["permissions"], name
        writes = {scope for scope, level in job["permissions"].items() if level == "write"}
        assert not writes or path.name == "release.yml", name


def test_scripts_of_workflows_are_sound() -> None:
    """What an expression expands to is data: it reaches a script through its environment alone."""
    scripts = [(name, step["run"]) for name, job in jobs() for step in job.get("steps", ()) if "run" in step]
    assert scripts
    for name, script in scripts:
        assert "${{" not in script, name
        checked = subprocess.run(
            [PROGRAMS / "shellcheck", "--shell", "bash", "-"],
            input=script,
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == 0, f"{name}\n{checked.stdout}"


@pytest.mark.parametrize("script", sorted((ROOT / ".ci").iterdir()), ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_say(script: Path) -> None:
    done = subprocess.run([PROGRAMS / "shellcheck", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A project of version 1.2.0 with three sections in its changelog, one of them empty."""
    for directory in (".ci", "helm/dump-ingest"):
        (tmp_path / directory).mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "release-notes", tmp_path / ".ci")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (tmp_path / "helm" / "dump-ingest" / "Chart.yaml").write_text('version: 7.0.0\nappVersion: "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## Unreleased\n\n## [1.2.0] - 2026-01-31\n\n### Added\n\n- a\n\n## 1.1.0\n\n- b\n"
    )
    return tmp_path


def notes(project: Path, tag: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [project / ".ci" / "release-notes", tag], capture_output=True, text=True, check=False, cwd="/"
    )


def test_notes_of_a_release_are_its_section_of_the_changelog(release: Path) -> None:
    done = notes(release, "v1.2.0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "### Added\n\n- a"


@pytest.mark.parametrize(
    ("path", "was", "becomes", "says"),
    [
        ("pyproject.toml", "1.2.0", "1.1.0", "pyproject.toml has version 1.1.0"),
        ("helm/dump-ingest/Chart.yaml", "1.2.0", "1.1.0", "appVersion 1.1.0"),
        ("CHANGELOG.md", "1.2.0", "1.2.0rc1", "no section 1.2.0"),
        ("CHANGELOG.md", "### Added\n\n- a\n", "", "or an empty one"),
    ],
)
def test_a_tag_that_does_not_agree_with_the_project_is_no_release(
    release: Path, path: str, was: str, becomes: str, says: str
) -> None:
    changed = release / path
    changed.write_text(changed.read_text().replace(was, becomes))
    done = notes(release, "v1.2.0")
    assert done.returncode == 1
    assert says in done.stderr


# The documentation site, of `make docs`.

API = ROOT / "docs" / "api.md"
#: What a browser would fetch by itself, from another host.
_FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//"
    r"|<link\b(?![^>]*rel=[\"']?canonical)[^>]*\bhref=[\"']?(?:https?:)?//"
    r"|@import[^;]*//|url\([\"']?(?:https?:)?//"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it as `make docs` does: whatever mkdocs warns of fails, such as a link to nowhere."""
    into = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", into],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return into


def test_every_page_is_there(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix("") / "index.html").exists(), page


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    (module,) = re.findall(r"^::: (\S+)$", API.read_text(), re.MULTILINE)
    page = (site / "api" / "index.html").read_text()
    missing = {name for name in ingest.__all__ if f'id="{module}.{name}"' not in page}
    assert missing <= {"__version__"}


def test_it_asks_no_other_host_for_anything(site: Path) -> None:
    for path in site.rglob("*"):
        if path.suffix in {".html", ".css"}:
            assert not _FETCHED.search(path.read_text()), path
