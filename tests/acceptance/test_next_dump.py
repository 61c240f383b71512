"""The loop closed: a dump, the configuration of the next one, the same program with it, and the answer.

The second dump of `nan-log-2rank` was made by MindSpore with the configuration that `next` wrote. Where
`make mindspore` has installed it, or `DUMP_INGEST_TEST_MINDSPORE` names a Python that has it, the whole loop
runs.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

import ingest
from tests.stores import DumpLibrary, ingest_and_open, ingest_directly, plan_all, run

ROOT = Path(__file__).parent.parent.parent
MINDSPORE = os.environ.get("DUMP_INGEST_TEST_MINDSPORE", str(ROOT / ".venv-mindspore/bin/python"))
PROGRAM = Path(__file__).parent.parent / "nan_program.py"


def sizes(dump: Path) -> list[int]:
    return [path.stat().st_size for path in dump.rglob("*.npy")]


def test_the_configuration_is_the_one_with_which_the_second_dump_was_made(
    dumps: DumpLibrary, tmp_path: Path
) -> None:
    ingest_directly(dumps["nan-log-2rank"] / "dump", tmp_path / "first.zarr")
    answer = ingest.next_dump(ingest.open_store(tmp_path / "first.zarr"))
    second = dumps["nan-log-2rank-next"]
    assert json.loads(answer.config.text) == json.loads((second / "data_dump.json").read_text())
    written = sizes(second / "dump")
    assert (answer.estimate.files, answer.estimate.nbytes) == (len(written), sum(written))
    assert sum(written) < 0.02 * answer.estimate.full_nbytes
    checked = ingest.check_dump_config(second / "data_dump.json", version="2.10.0", device="CPU")
    assert checked.findings == ()


def test_the_second_dump_has_the_origin_and_its_inputs(dumps: DumpLibrary, tmp_path: Path) -> None:
    store = ingest_and_open(dumps["nan-log-2rank-next"] / "dump", tmp_path / "second.zarr")
    origin = ingest.origin(store)
    assert (origin.op_type, origin.how, origin.rank, origin.step) == ("Log", "born", 1, 2)
    assert [tensor.io for tensor in origin.inputs] == ["input"]
    assert origin.why is not None
    assert ingest.missing(store) == []


@pytest.mark.skipif(not Path(MINDSPORE).exists(), reason="not installed: MindSpore (make mindspore)")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["log", "sqrt"])
def test_mindspore_dumps_what_next_asked_for(kind: str, tmp_path: Path) -> None:
    """From statistics alone to the elements of the operator and its inputs, at a fraction of the bytes."""
    full = tmp_path / "full"
    common = {
        "op_debug_mode": 0,
        "dump_mode": 0,
        "path": str(full).replace(".", "_"),
        "net_name": "Net",
        "iteration": "1-3",
        "saved_data": "tensor",
        "input_output": 0,
        "kernels": [],
        "support_device": list(range(8)),
    }
    first = {"common_dump_settings": common, "e2e_dump_settings": {"enable": True, "trans_flag": True}}
    dump_with(json.dumps(first), kind, tmp_path / "first.json")
    for plan in plan_all(full, tmp_path / "first.zarr", leave_out_tensors="statistics first"):
        run(plan)
    answer = ingest.next_dump(ingest.open_store(tmp_path / "first.zarr"))
    assert answer.answers[0].startswith("which elements")
    dump_with(answer.config.text, kind, tmp_path / "next.json")
    second = Path(answer.config.text.split('"path": "')[1].split('"')[0])
    written = sizes(second)
    assert sum(written) < 0.02 * sum(sizes(full))
    assert 1 / 1.5 < answer.estimate.nbytes / sum(written) < 1.5
    assert 1 / 1.5 < answer.estimate.files / len(written) < 1.5
    ingest_directly(second, tmp_path / "second.zarr")
    origin = ingest.origin(ingest.open_store(tmp_path / "second.zarr"))
    assert (str(origin.op_type).lower(), origin.how, origin.step) == (kind, "born", 2)
    assert origin.inputs
    assert origin.why is not None


def dump_with(config: str, kind: str, path: Path) -> None:
    """Run the program with a configuration."""
    path.write_text(config)
    environment = {**os.environ, "MINDSPORE_DUMP_CONFIG": str(path)}
    done = subprocess.run(
        [MINDSPORE, str(PROGRAM), "--kind", kind],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
