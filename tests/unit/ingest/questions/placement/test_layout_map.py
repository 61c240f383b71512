"""Files that say how ranks hold tensors."""

from pathlib import Path

import numpy as np
import pytest

from ingest.questions.placement.decide import Certainty, decide
from ingest.questions.placement.layout_map import MappedPlacement, load_layout_map
from tests.in_memory import search_in
from workers.errors import UsageError

NOISE = np.random.default_rng(7).normal(size=(2, 6, 6)).astype(np.float32)
TEXT = """
placements:
  - {name: "a.*", a: "partial sum"}
  - {regex: 'b\\.[01]', a: replicated, b: whole}
  - {name: "c", a: "shard 1"}
"""


@pytest.mark.parametrize(
    ("name", "kind", "certainty"),
    [
        ("a.x", "partial sum", Certainty.MAPPED),
        ("b.1", "replicated", Certainty.MAPPED),
        ("c", None, Certainty.OPEN),
    ],
)
def test_the_first_pair_that_fits_counts(
    tmp_path: Path, name: str, kind: str | None, certainty: Certainty
) -> None:
    path = tmp_path / "map.yml"
    path.write_text(TEXT)
    open_one = decide(search_in([NOISE[0], NOISE[1]], [NOISE[0].T]), ("float32", "float32"))
    mapped = load_layout_map(path).apply(name, open_one)
    assert (mapped.way.a.kind if mapped.way else None, mapped.certainty) == (kind, certainty)
    assert load_layout_map(path).apply("other", open_one) is open_one


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("placements:\n  - {name: x, a: sharded}\n", "is not a placement"),
        ("placements:\n  - {a: replicated}\n", "give either"),
        ("placements:\n  - {regex: '(', a: replicated}\n", r"map.yml:2: "),
        ("other: 1\n", "other"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "map.yml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        load_layout_map(path)


def test_a_whole_name_fits_although_it_has_brackets() -> None:
    mapped = MappedPlacement(name="dump.layers[0].output.0", a="replicated")
    assert mapped.fits("dump.layers[0].output.0")
    assert not mapped.fits("dump.layers[1].output.0")
