"""The documentation site, of `make docs`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ingest

ROOT = Path(__file__).parents[3]
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
