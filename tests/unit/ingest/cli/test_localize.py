"""`dump-ingest localize` as it is typed."""

from pathlib import Path

from tests.cli import Answer


def test_tensors_that_differ_are_listed_with_their_place(sketched_store: Path, answer: Answer) -> None:
    sides = (f"{sketched_store}@1,2", f"{sketched_store}@0,2")
    done = answer("localize", *sides, "--op-type", "Log", code=5)
    heading, *lines = done.stdout.splitlines()
    assert heading.split() == ["name", "shape", "blocks", "differ", "elements", "positions"]
    assert [line.split()[-1] for line in lines] == ["3]", "3]"]
    assert "all that differs is among the elements\n" in done.stderr  # and no positions are known
    made = answer("localize", *sides, "--op-type", "Log", "--json", code=5).json
    assert [(tensor["blocks"], tensor["ranges"][0]["last"]) for tensor in made["tensors"]] == [
        (1, [5, 3])
    ] * 2


def test_equal_steps_are_no_difference(sketched_store: Path, answer: Answer) -> None:
    side = f"{sketched_store}@0,1"
    assert "243 tensors are equal" in answer("localize", side, side).stderr
    assert "STORE@RANK,STEP" in answer("localize", sketched_store, side, code=2).stderr
