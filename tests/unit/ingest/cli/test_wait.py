"""`dump-ingest wait`: the exit code says whether it came."""

from pathlib import Path

from tests.cli import Answer


def test_it_ends_with_what_came(found_store: Path, answer: Answer) -> None:
    assert "NaN" in answer("wait", found_store).stdout
    assert answer("wait", found_store, "--until", "step", 3).stdout.startswith(
        "every rank has committed step 3"
    )
    assert answer("wait", found_store, "--until", "idle", "--idle", 0).stdout.startswith(
        "nothing was committed"
    )
    came = answer("wait", found_store, "--json").json
    assert (came["came"], came["incident"]["kind"]) == (True, "nan")


def test_time_that_is_over_has_a_code_of_its_own(found_store: Path, answer: Answer, tmp_path: Path) -> None:
    done = answer("wait", found_store, "--until", "step", 9, "--timeout", 0, code=124)
    assert done.stdout == "rank 0 has committed step 3, and not step 9\n"
    assert answer("wait", found_store, "--new", "--timeout", 0, code=124).stdout.startswith("no critical")
    assert answer("wait", tmp_path / "none", "--timeout", 0, code=124).stdout == "there is no store yet\n"
