"""`dump-ingest verify` as it is typed."""

import shutil
from pathlib import Path

from tests.cli import Answer


def test_damage_is_named_and_ends_with_3(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(nan_store, tmp_path / "run.zarr"))
    (payload,) = (damaged / "rank_1" / "step_2").glob("*/tensors/int32/c/0")
    payload.write_bytes(b"")
    rows = answer("verify", damaged, "--step", 2, "--json", code=3).json
    assert {(row["rank"], row["step"]) for row in rows} == {(1, 2)}
    table = answer("verify", damaged, "--step", 2, code=3)
    assert len(table.stdout.splitlines()) == len(rows)
    assert f"{len(rows)} damaged" in table.stderr
