"""Measure the structure of the sources, of several revisions side by side.

    python -m tests.structure
    python -m tests.structure --rev 78bba84 --rev .

Prints a Markdown table with a column for each revision, followed by the lists behind some of its figures.
`tests.structure.measures` names the function behind each figure; its docstring defines the figure.
"""

from __future__ import annotations

import argparse
import json
import subprocess

from tests.structure import report
from tests.structure.measures import Measured, measure
from tests.structure.revisions import WORKING_TREE, sources_of


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.structure", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--rev",
        action="append",
        metavar="REV",
        help=f"git revision, or {WORKING_TREE!r} for the working tree (default); repeat for more columns",
    )
    parser.add_argument("--json", action="store_true", help="print all of it as JSON instead")
    chosen = parser.parse_args()
    columns: dict[str, Measured] = {}
    for revision in chosen.rev or [WORKING_TREE]:
        try:
            with sources_of(revision) as root:
                columns[report.title(revision)] = measure(root)
        except subprocess.CalledProcessError as exc:
            parser.error(f"{revision}: git cannot read this revision ({exc})")
    print(json.dumps(report.as_json(columns), indent=1) if chosen.json else report.markdown(columns))


if __name__ == "__main__":
    main()
