#!/usr/bin/env python3
"""Prints the bill of materials of the Python packages of this interpreter, as CycloneDX 1.5 in JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from typing import Any

_OURS = "dump-ingest"


def main() -> int:
    """Print the document."""
    json.dump(document(), sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")
    return 0


def document() -> dict[str, Any]:
    """Return the bill of materials; equal installations give equal documents."""
    packages = sorted(distributions(), key=_name)
    names = {_name(distribution) for distribution in packages}
    ours = [component for component in map(_component, packages) if component["name"] == _OURS]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**ours[0], "type": "application"}} if ours else {},
        "components": [component for component in map(_component, packages) if component["name"] != _OURS],
        "dependencies": [_dependencies(distribution, names) for distribution in packages],
    }


def _component(distribution: Distribution) -> dict[str, Any]:
    licence = distribution.metadata.json.get("license_expression")
    return {
        "type": "library",
        "name": _name(distribution),
        "version": distribution.version,
        "purl": _purl(distribution),
        "bom-ref": _name(distribution),
        **({"licenses": [{"expression": licence}]} if licence else {}),
    }


def _dependencies(distribution: Distribution, installed: set[str]) -> dict[str, Any]:
    required = sorted({name for name in _required(distribution) if name in installed})
    return {"ref": _name(distribution), "dependsOn": required}


def _required(distribution: Distribution) -> Iterator[str]:
    for requirement in distribution.requires or ():
        matched = re.match(r"[A-Za-z0-9._-]+", requirement)
        if matched and "extra ==" not in requirement:
            yield _normal(matched[0])


def _purl(distribution: Distribution) -> str:
    return f"pkg:pypi/{_name(distribution)}@{distribution.version}"


def _name(distribution: Distribution) -> str:
    return _normal(distribution.metadata["Name"])


def _normal(name: str) -> str:
    """Return the normalised name of a package, as the packaging standards define it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
