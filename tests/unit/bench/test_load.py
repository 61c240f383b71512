"""Dumps that are built for benchmarks."""

from pathlib import Path

from bench.load import build, read_profile

PROFILE = """\
name,descr,shape,content,zero_fraction,std_of_nonzero,same_as_previous_step
Adam.op0.0.0.*.input.0.DefaultFormat.Float32,<f4,2x3,0,0,1,1
ReLU.op1.0.0.*.output.0.DefaultFormat.Float32,<f4,2x3,1,0.5,1,0
Copy.op2.0.0.*.output.0.DefaultFormat.Float32,<f4,2x3,1,0.5,1,0
"""


def files_of(directory: Path) -> dict[str, bytes]:
    """Return the files of a directory by operator."""
    return {path.name.partition(".")[0]: path.read_bytes() for path in directory.rglob("*.npy")}


def test_a_profile_is_rebuilt_with_its_copies(tmp_path: Path) -> None:
    (tmp_path / "profile.csv").write_text(PROFILE)
    assert [row.size for row in read_profile(tmp_path / "profile.csv")] == [6, 6, 6]
    load = build(tmp_path / "profile.csv", tmp_path / "dump", steps=2)
    first, second = (files_of(tmp_path / "dump/rank_0/TinyBert/0" / step) for step in "01")
    assert first["ReLU"] == first["Copy"] != second["ReLU"]
    assert first["Adam"] == second["Adam"]
    assert (load.files, load.nbytes, load.distinct_nbytes) == (6, 6 * 152, 4 * 152)
