"""Exporting gives the files of the dump, byte for byte, or says why it cannot."""

from pathlib import Path

import pytest

from ingest.api import DumpStore
from ingest.reader.export import export
from workers.errors import UsageError


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*.npy")}


def test_only_the_files_of_chosen_rows_are_written(filled: DumpStore, tmp_path: Path) -> None:
    step = filled.step(0, 8)
    (file,) = export(step, tmp_path / "out", [step.rows()[3]])
    assert list(contents(tmp_path / "out")) == [file.source]


def test_existing_files_are_replaced_on_request_only(filled: DumpStore, tmp_path: Path) -> None:
    step = filled.step(0, 8)
    out = tmp_path / "out"
    last = step.export(out)[-1].path
    whole = last.read_bytes()
    last.write_bytes(b"changed")
    for other in out.rglob("*.npy"):
        if other != last:
            other.unlink()
    with pytest.raises(UsageError, match="exists") as raised:
        step.export(out)
    assert "--overwrite" in raised.value.hint
    assert len(contents(out)) == 1  # refused before anything was written
    step.export(out, overwrite=True)
    assert last.read_bytes() == whole


def test_a_target_in_a_store_is_refused(filled: DumpStore, store: Path) -> None:
    """`gc` would delete the files."""
    for target in (store, store / "out"):
        with pytest.raises(UsageError, match=f"would lie in the store {store}"):
            list(export(filled.step(0, 8), target))
    assert not (store / "out").exists()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("where", ["", "rank_0", "rank_0/Net", "file", "dangling"])
def test_links_of_the_target_are_not_followed(
    filled: DumpStore, tmp_path: Path, where: str, *, overwrite: bool
) -> None:
    """Whoever may write to the target could else have files written anywhere."""
    step, out, elsewhere = filled.step(0, 8), tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    secret = elsewhere / "secret"
    secret.write_bytes(b"precious")
    source = step.export(tmp_path / "model")[0].source
    link = out / (source if where in {"file", "dangling"} else where)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to({"file": secret, "dangling": elsewhere / "new"}.get(where, elsewhere))
    with pytest.raises(UsageError, match=rf"{link} is a symbolic link") as raised:
        step.export(out, overwrite=overwrite)
    assert "Export into a new directory" in raised.value.hint
    assert secret.read_bytes() == b"precious"
    assert list(elsewhere.iterdir()) == [secret]
