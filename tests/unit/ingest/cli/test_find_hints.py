"""Why `find` may have found nothing."""

from pathlib import Path

import ingest
from ingest.cli.find_hints import hints


def test_what_is_right_has_no_hint(nan_store: Path) -> None:
    store = ingest.open_store(nan_store)
    chosen = {"name": "nothing*", "op_type": "Log", "where": "max > 1e30 and op_type == 'Log'"}
    assert hints(store, 1, 2, chosen) == []


def test_a_name_that_no_tensor_has_is_answered_with_those_that_are_near(nan_store: Path) -> None:
    (hint,) = hints(ingest.open_store(nan_store), 1, 2, {"name": "Lgo*"})
    assert hint.startswith("No tensor is named like Lgo*; near: Log.Default_net-LogLoss_Log-op0.input.0, ")


def test_each_condition_has_its_own(nan_store: Path) -> None:
    store = ingest.open_store(nan_store)
    chosen = {"name": "neg.*", "op_type": "LOG", "where": "step > 9 and op_type == 'neg'"}
    answers = hints(store, None, 2, chosen)
    assert [answer.split(":")[0] for answer in answers] == [
        "Types are case-sensitive",
        "Names are case-sensitive. In another case",
        "Types are case-sensitive",
        "The store has ranks 0-1 and steps 1-3.",
    ]


def test_values_that_no_tensor_has_are_answered_with_those_there_are(nan_store: Path) -> None:
    chosen = {"io": "in", "graph": "7", "where": "name == 'Log*'"}
    assert hints(ingest.open_store(nan_store), 1, 2, chosen) == [
        "No tensor has the io in; there are: input, output",
        "No tensor has the graph 7; there are: 0",
        "A condition compares whole text: --name 'Log*' is a pattern",
    ]
