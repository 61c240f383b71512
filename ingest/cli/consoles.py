"""Where commands draw what moves: progress, and what is under way."""

from __future__ import annotations

from rich.console import Console

__all__ = ["err"]

err = Console(stderr=True, highlight=False)
