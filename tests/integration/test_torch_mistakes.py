"""`layout` and `divergence` of real gloo runs in which a rank does what it should not."""

from pathlib import Path

import pytest

import ingest
from tests.in_process import run_here
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT
from tests.torch_mistakes import MISTAKES, run


@pytest.fixture(scope="module")
def dumps(torch: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks dumped of each run."""
    assert torch is not None
    directory = tmp_path_factory.mktemp("mistakes")
    run(directory)
    return directory


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=list(MISTAKES))
def test_a_mistake_is_found_where_it_is(dumps: Path, tmp_path: Path, number: int) -> None:
    store = tmp_path / "run.zarr"
    ingest_directly(dumps / str(number), store, layout=LAYOUT)
    opened = ingest.open_store(store)
    findings = [(finding.kind, short(finding.name)) for finding in ingest.layout(opened).findings]
    mistake, expected = list(MISTAKES.items())[number]
    assert findings[:1] == ([expected] if expected else [])
    # Whoever asks for divergence gets them, too, and the difference between replicas, if it is one.
    diverged = ingest.divergence(opened)
    assert [group.ranks for group in diverged.groups] == [(0, 1)]
    assert diverged.misplaced == ingest.layout(opened).findings
    assert diverged.agree == (expected is None)
    is_of_replicas = mistake == "a rank has an old state"
    names = [short(row.name) for row in diverged.differences]
    assert names == ([expected[1]] if expected and is_of_replicas else [])
    asked = run_here("divergence", store, code=5 if expected else 0)
    if expected:
        assert asked.stdout.startswith(expected[0])
        assert f"see     dump-ingest layout {store} --step" in asked.stdout


def short(name: str) -> str:
    return name.removeprefix("Module..").removesuffix(".output.0")
