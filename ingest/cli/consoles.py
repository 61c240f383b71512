"""The consoles on which commands draw what changes, such as their progress."""

from __future__ import annotations

from rich.console import Console

__all__ = ["err"]

err = Console(stderr=True, highlight=False)
