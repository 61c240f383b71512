"""The answer as plain values and as a table."""

import json

from ingest.questions.divergence import divergence
from tests.diverging import WEIGHT, replicas


def test_the_answer_is_strict_json_with_the_names_of_tensors() -> None:
    answer = divergence(replicas(off=[(2, 1, WEIGHT)]).store).to_dict()
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert (answer["agree"], answer["ranks"], answer["missing"]) == (False, [0, 1, 2, 3], [])
    (difference,) = answer["differences"]
    assert (difference["name"], difference["op_type"], difference["slot"]) == (WEIGHT, "Adam", 0)
    assert (difference["ranks"], difference["others"], difference["healed"]) == ([2], [0, 1, 3], True)
    assert answer["odd"][0]["first"] == difference
    assert set(answer["odd"][0]["values"]["l2_norm"]) == {"odd", "others"}


def test_differences_are_a_table_even_without_any() -> None:
    table = divergence(replicas(off=[(2, 1, WEIGHT)]).store).to_pandas()
    assert table["name"].tolist() == [WEIGHT]
    empty = divergence(replicas().store).to_pandas()
    assert (len(empty), list(empty.columns)) == (0, list(table.columns))
