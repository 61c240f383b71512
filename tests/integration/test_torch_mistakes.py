"""`layout` of real gloo runs in which a rank holds or does what it should not; without a reference."""

from pathlib import Path

import pytest

import ingest
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
    findings = [
        (finding.kind, finding.name.removeprefix("Module..").removesuffix(".output.0"))
        for finding in ingest.layout(ingest.open_store(store)).findings
    ]
    expected = list(MISTAKES.values())[number]
    assert findings[:1] == ([expected] if expected else [])
