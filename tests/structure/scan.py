"""Print the imports of a tree, as grimp finds them, as JSON: `python -I scan.py ROOT`.

This runs as its own process, because grimp finds packages by name. In the process that runs the tests,
`ingest` is already the package under test and cannot be that of another revision.
"""

import json
import sys
from pathlib import Path

import grimp

#: The packages that are measured, at the root of a tree.
PACKAGES = ("ingest", "workers")


def scan(root: Path) -> dict[str, list[tuple[str, int]]]:
    """Return for each module the modules that it imports, with the lines of the imports.

    All imports count: at the top of a module, inside functions and under `TYPE_CHECKING`. Importing a module
    from its package (`from ingest.layouts import mindspore`) is an import of the module, not of the
    `__init__` of the package.
    """
    sys.path.insert(0, str(root))
    present = [package for package in PACKAGES if (root / package).is_dir()]
    graph = grimp.build_graph(*present, cache_dir=None)
    return {
        importer: [
            (imported, detail["line_number"])
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            for detail in graph.get_import_details(importer=importer, imported=imported)
        ]
        for importer in sorted(graph.modules)
    }


if __name__ == "__main__":
    print(json.dumps(scan(Path(sys.argv[1]))))
