"""`dump-ingest precision` as it is typed."""

from pathlib import Path

from tests.cli import Answer


def test_tensors_that_lose_something_are_listed(sketched_store: Path, answer: Answer) -> None:
    done = answer("precision", sketched_store, "-f", "e4m3", "--role", "gradient", "--limit", 3)
    heading, *lines = done.stdout.splitlines()
    assert heading.split()[:5] == ["format", "overflow", "underflow", "rank", "step"]
    assert len(lines) == 3
    assert all(line.startswith("float8_e4m3fn") and "%" in line for line in lines)
    assert "the first 3 shown" in done.stderr


def test_json_has_every_step_and_rank_on_demand(sketched_store: Path, answer: Answer) -> None:
    options = ("precision", sketched_store, "Log.*.output.0", "-f", "nvfp4", "--json")
    made = answer(*options).json
    assert [(row["name"][:4], row["format"], row["scale"]) for row in made["tensors"]] == [
        ("Log.", "nvfp4", None)
    ]
    assert "rows" not in made
    rows = answer(*options, "--rows").json["rows"]
    assert [(row["step"], row["rank"]) for row in rows] == [(s, r) for s in (1, 2, 3) for r in (0, 1)]


def test_tensors_without_a_histogram_are_not_called_lossless(nan_store: Path, answer: Answer) -> None:
    told = answer("precision", nan_store, "-f", "e4m3").stderr
    assert "no tensor that has a histogram would lose anything" in told
    assert "`dump-ingest sketch STORE` adds them" in told
