"""The scope and the line of an operator, spelt alike for all versions of a framework."""

import pytest

import ingest
from ingest.questions.compare.operator_origins import OperatorOrigin, origins_of, scope_of
from ingest.questions.compare.selection import Selection
from ingest.questions.compare.stored_steps import StoreSource
from workers.model import StepKey

GRADIENT = "Gradients_Default_net-WithLossCell__backbone-Net_fc-Dense_Grad_MatMul"


@pytest.mark.parametrize(
    ("name", "op_type", "scope"),
    [
        ("Default/net-WithLossCell/_backbone-Net/fc-Dense/MatMul-op4", "MatMul", GRADIENT[10:-12]),
        ("Default_net-WithLossCell__backbone-Net_fc-Dense_MatMul-op0", "MatMul", GRADIENT[10:-12]),
        (
            "Gradients/Default/net-WithLossCell/_backbone-Net/fc-Dense/gradMatMul-expand/MatMul-op9",
            "MatMul",
            GRADIENT,
        ),
        (
            "Gradients/Default/net-WithLossCell/_backbone-Net/fc-Dense/Grad_MatMul/MatMul-op1",
            "MatMul",
            GRADIENT,
        ),
        (f"{GRADIENT}_MatMul-op1", "MatMul", GRADIENT),
        ("MatMul-op47", "MatMul", ""),
        ("fc.weight", "Parameter", ""),
    ],
)
def test_versions_spell_one_scope_alike(name: str, op_type: str, scope: str) -> None:
    assert scope_of(name, op_type) == scope


def test_a_store_knows_scopes_and_lines(nan_log: str) -> None:
    store = ingest.open_store(nan_log)
    source = StoreSource(Selection(nan_log), store, include_partial=False)
    tensors = source.load(StepKey(1, 2))
    origins = origins_of(tensors)
    (log,) = (origin for key, origin in origins.items() if key[2] == "Log")
    assert log == OperatorOrigin("Default_net-LogLoss", log.line)
    assert log.line is not None
    assert log.line[0] == "nan_train.py"
