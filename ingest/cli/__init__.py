"""The command line: modules of commands, and modules that commands share.

app.py        the table of commands, with the module that each is in, and `main`
question.py   a command of each question
options.py    options and arguments that several commands have; settings, and the store that they name
printing.py   tables, JSON, messages and files
exits.py      exit codes, error messages, signals, standard output

What takes long to import is not in the module of a command, which `COMMAND --help` imports, but in modules
that the command imports when it runs: `gc_run.py`, `compare_report.py` and so on.
"""

from __future__ import annotations

import gc
import signal

__all__ = ["GC_OBJECTS", "main"]


#: Objects that are made before the garbage collector looks at them (700 by default): an import, a plan and an
#: index make a hundred thousand each, which stay, and looking at them took a tenth of a command.
GC_OBJECTS = 200_000


def main() -> None:
    """Run the command line; end the process with one of the documented exit codes."""
    gc.set_threshold(GC_OBJECTS, *gc.get_threshold()[1:])
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the command handles it: Python's own handler would print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ingest.cli.app import main as run  # deferred: 0.2 s, in which Ctrl-C may be pressed

    try:
        run()
    finally:
        gc.freeze()  # the interpreter would look for garbage once more before it ends
