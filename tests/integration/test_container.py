"""The Dockerfile, as text; tests/integration/test_podman.py builds and runs it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()


def test_the_base_of_the_image_is_pinned() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.MULTILINE)
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert set(bases) - {*stages} == {"${PYTHON_IMAGE}"}
    assert re.search(r"^ARG PYTHON_IMAGE=\S+:[\w.-]+@sha256:[0-9a-f]{64}$", DOCKERFILE, re.MULTILINE)


def test_image_runs_as_a_number_other_than_root() -> None:
    """Kubernetes can tell that a name is not root only by its number."""
    assert re.search(r"^ARG UID=[1-9]\d*$", DOCKERFILE, re.MULTILINE)
    assert DOCKERFILE.rindex("USER ${UID}:${UID}") > DOCKERFILE.rindex("\nRUN ")


def test_image_is_made_of_what_is_there_and_not_ignored() -> None:
    admitted = re.findall(r"^!(.*)", (ROOT / "deploy" / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert "ingest" in copied
    for source in copied:
        assert (ROOT / source).exists()
        assert {source, *map(str, Path(source).parents)} & {*admitted}
