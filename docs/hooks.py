"""Add files from outside of `docs/` to the documentation site: README as its home page, and linked files.

In the repository, links are relative to the file that contains them. On the site, pages from outside of
`docs/` have other paths, so links to and from them are rewritten. Other files to which a page links are
copied. Anchors are converted to lower case, as on the pages of a repository host.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
#: Files outside of `docs/` that are pages of the site, and their paths on the site.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "helm/dump-ingest/README.md": "helm.md",
}
#: The directory on the site with the copies of other files.
_COPIES = "files"
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)#:\s]*)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages from outside of `docs/`, and copies of the other files to which any page links."""
    for source, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / source)))
    copies = {
        path
        for page in files.documentation_pages()
        for match in _LINK.finditer(page.content_string)
        if match["target"]
        if _is_copied(path := _in_repository(_source(page), match["target"]))
    }
    for path in sorted(copies):
        files.append(File.generated(config, f"{_COPIES}/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Rewrite each link so that it leads to the path of its target on the site."""
    source = _source(page.file)

    def rewrite(match: re.Match[str]) -> str:
        text, target, anchor = match["text"], match["target"], (match["anchor"] or "").lower()
        if not target:
            return f"[{text}]({anchor})"
        path = _in_repository(source, target)
        if not (ROOT / path).exists():
            return match[0]  # not a link to a file, or a broken one, about which mkdocs warns
        uri = _on_site(path)
        if uri is None:
            return text
        return f"[{text}]({posixpath.relpath(uri, posixpath.dirname(page.file.src_uri))}{anchor})"

    return _LINK.sub(rewrite, markdown)


def _source(file: File) -> str:
    return next((source for source, uri in PAGES.items() if uri == file.src_uri), f"docs/{file.src_uri}")


def _in_repository(source: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def _is_copied(path: str) -> bool:
    return path not in PAGES and not path.startswith(("docs/", "../")) and (ROOT / path).is_file()


def _on_site(path: str) -> str | None:
    """Return the path on the site of a path in the repository, or None if the site does not have it.

    A directory stands for the first page in it.
    """
    if path in PAGES:
        return PAGES[path]
    if _is_copied(path):
        return f"{_COPIES}/{path}"
    if (ROOT / path).is_dir():
        path = min((page.relative_to(ROOT).as_posix() for page in (ROOT / path).glob("*.md")), default="")
        return _on_site(path) if path else None
    return path.removeprefix("docs/") if path.startswith("docs/") else None
