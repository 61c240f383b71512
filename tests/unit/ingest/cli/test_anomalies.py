"""`dump-ingest anomalies` as it is typed."""

from pathlib import Path

from tests.cli import Answer


def test_one_nan_is_one_incident(found_store: Path, answer: Answer) -> None:
    done = answer("anomalies", found_store)
    headline, source, *_ = done.stdout.splitlines()
    assert headline.endswith("  NaN born in Log (Default_net-LogLoss_Log-op0) on rank 1, step 2")
    assert source.startswith("  /srv/train/nan_train.py:45  ")
    assert done.stderr == "1 incident: 1 critical\n"
    (row,) = answer("anomalies", found_store, "--json").json
    assert (row["id"], row["kind"], row["rank"]) == (headline.split()[1], "nan", 1)
    assert row["origin"]["op_type"] == "Log"
    assert answer("anomalies", found_store, "--id", row["id"], "--json").json == [row]


def test_steps_that_no_rule_has_seen_are_named(nan_store: Path, answer: Answer) -> None:
    """No finding there means nothing; NaN is known without rules."""
    done = answer("anomalies", nan_store, "--findings")
    assert done.stdout == ""
    assert done.stderr.startswith("0 findings\nnot evaluated: ranks 0-1, steps 1-3: ")
    done = answer("anomalies", nan_store)
    assert done.stderr.startswith("1 incident: 1 critical\nnot evaluated: rank 0, steps 1-3: ")
