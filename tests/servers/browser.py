"""A real Chromium that notes what goes wrong on a page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, Self

from playwright.sync_api import Page, sync_playwright


class Visitor:
    """A page of a browser, with all complaints about it, and all requests that leave its server."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.origin = origin
        self.complaints: list[str] = []
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", lambda request: self._check(request.url))

    def go(self, path: str) -> None:
        """Open a path; what the script of the page fetches may still be under way."""
        self.page.goto(f"{self.origin}{path}")

    def faults(self) -> list[str]:
        """Return what axe-core calls serious or critical, each with the elements it is about."""
        script = files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
        # Through the protocol, as a debugger does: the page itself forbids foreign scripts.
        self.page.evaluate(f"(() => {{ {script} }})()")
        answer: dict[str, Any] = self.page.evaluate("axe.run()")
        return [
            f"{fault['id']}: {node['target']} {node.get('failureSummary', '')}"
            for fault in answer["violations"]
            if fault["impact"] in {"serious", "critical"}
            for node in fault["nodes"]
        ]

    def _note(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.complaints.append(f"{kind}: {text}")

    def _check(self, url: str) -> None:
        if not url.startswith((self.origin, "data:")):
            self.complaints.append(f"request to {url}")


class Chromium:
    """One browser for many visitors; a context manager."""

    def __enter__(self) -> Self:
        self._playwright = sync_playwright().start()
        self._browser = self._playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._browser.close()
        self._playwright.stop()

    @contextmanager
    def visit(
        self, origin: str, *, narrow: bool = False, dark: bool = False, scripts: bool = True
    ) -> Iterator[Visitor]:
        """Open a window on a server."""
        context = self._browser.new_context(
            viewport={"width": 390, "height": 844} if narrow else {"width": 1280, "height": 800},
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
        )
        try:
            yield Visitor(context.new_page(), origin)
        finally:
            context.close()
