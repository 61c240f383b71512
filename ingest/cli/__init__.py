"""The command line: one module per command."""

from __future__ import annotations

from ingest.cli.app import main

__all__ = ["main"]
