"""The command line: a module for each command, and modules that commands share.

app.py        the table of commands, and `main`
options.py    options and arguments that several commands have
opening.py    settings, and the store that they name
printing.py   tables, JSON and messages
files.py      files that commands write
exits.py      exit codes, error messages, signals

What takes long to import is not in the module of a command, which `COMMAND --help` imports, but in modules
that the command imports when it runs: `gc_run.py`, `gc_report.py` and so on.
"""

from __future__ import annotations

from ingest.cli.app import main

__all__ = ["main"]
