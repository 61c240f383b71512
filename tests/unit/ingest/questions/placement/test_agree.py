"""Tensors of one kind are held alike."""

import numpy as np
import pytest

from ingest.questions.placement.agree import (
    Agreements,
    kind_of,
    kinds_of,
    placement_text,
)
from ingest.questions.placement.decide import Certainty, Decision, decide
from tests.in_memory import Values, search_in
from workers.store.consolidated.blocks import TensorKey

RNG = np.random.default_rng(6)
WHOLE = RNG.normal(size=(6, 6)).astype(np.float32)
NOISE = RNG.normal(size=(6, 6)).astype(np.float32)


def key(name: str, op_type: str = "Module") -> TensorKey:
    return TensorKey("", "", op_type, name, "output", 0)


def decided(*parts: Values) -> Decision:
    return decide(search_in(list(parts), [WHOLE]), ("float32", "float32"))


@pytest.mark.parametrize(
    ("name", "other", "alike"),
    [
        ("layers.0.fc1", "layers.11.fc1", True),
        ("attn_q.layer_id=0", "attn_q.layer_id=3", True),
        ("net-MatMul-op3", "net-MatMul-op17", True),
        ("layers.0.fc1", "layers.0.fc2", False),
    ],
)
def test_numbers_of_layers_do_not_matter_and_those_in_words_do(name: str, other: str, alike: bool) -> None:
    assert (kind_of(key(name), 2) == kind_of(key(other), 2)) == alike
    assert kind_of(key(name), 2) != kind_of(key(name), 3)


def test_what_is_open_is_settled_by_others_of_its_kind() -> None:
    agreements, kind = Agreements(), kind_of(key("a.0"), 2)
    unknown = decided(NOISE, NOISE.T)
    assert placement_text(unknown) == "?"
    assert agreements.settle([kind], unknown) is unknown
    agreements.learn([kind], decided(WHOLE - NOISE, NOISE))
    settled = agreements.settle([kind], unknown)
    assert (settled.certainty, placement_text(settled)) == (Certainty.AGREED, "partial sum")
    agreements.learn([kind], decided(WHOLE, WHOLE))
    assert agreements.settle([kind], unknown) is unknown  # the kind is not unanimous any more


def test_one_among_many_is_odd() -> None:
    agreements, kind = Agreements(), kind_of(key("a.0"), 2)
    whole, parts = decided(WHOLE, WHOLE), decided(WHOLE - NOISE, NOISE)
    for decision in (whole, whole, parts):
        agreements.learn([kind], decision)
    assert agreements.odd(kind, parts).startswith("replicated")
    assert agreements.odd(kind, whole) == ""


def test_gradients_are_held_as_their_parameters() -> None:
    kinds = kinds_of(key("a.weight", "Gradient"), 1)
    assert kinds[1] == kind_of(key("a.weight", "Parameter"), 1)
