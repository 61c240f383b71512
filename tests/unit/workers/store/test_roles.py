"""Roles of tensors: by names, by the definitions of optimizers, and by the order of execution."""

from collections.abc import Sequence

import numpy as np
import pytest

from workers.store.roles import Hint, hint_of, hints_of, roles_of

NET = "Default_network-WithLossCell__backbone-Net_fc-Dense_"
LOSS = "Default_network-WithLossCell__loss_fn-SoftmaxCrossEntropyWithLogits_"


@pytest.mark.parametrize(
    ("op_type", "op_name", "io", "slot", "hint"),
    [
        ("MatMul", f"{NET}MatMul-op0", "output", 0, Hint.ACTIVATION),
        ("MatMul", f"{NET}MatMul-op0", "input", 1, Hint.NONE),
        ("MatMul", f"Gradients_{NET}Grad_MatMul_MatMul-op0", "output", 0, Hint.GRADIENT),
        ("MatMul", f"Gradients/{NET}gradMatMul-expand/MatMul-op3", "output", 0, Hint.GRADIENT),
        ("MatMul", "MatMul-op47", "output", 0, Hint.UNSCOPED),
        ("AllReduce", "Default_AllReduce-op3", "output", 0, Hint.UNSCOPED),
        ("BiasAddGrad", "BiasAddGrad-op48", "output", 0, Hint.GRADIENT),
        ("StopGradient", f"{NET}StopGradient-op0", "output", 0, Hint.ACTIVATION),
        ("ReduceMean", f"{LOSS}ReduceMean-op0", "output", 0, Hint.OF_LOSS),
        ("ReduceMean", "Default_net-SqrtLoss_ReduceMean-op0", "output", 0, Hint.OF_LOSS),
        ("NLLLoss", "NLLLoss-op4", "output", 0, Hint.UNSCOPED_LOSS),
        ("Mul", "Default_opt-Adam_Mul-op0", "output", 0, Hint.NONE),
        ("ApplyMomentum", "Default_optimizer-Momentum_ApplyMomentum-op0", "input", 0, Hint.WEIGHT),
        ("ApplyMomentum", "Default_optimizer-Momentum_ApplyMomentum-op0", "input", 3, Hint.GRADIENT),
        ("ApplyMomentum", "ApplyMomentum-op9", "input", 4, Hint.OPTIMIZER_STATE),
        ("ApplyMomentum", "ApplyMomentum-op9", "output", 0, Hint.NONE),
        ("Adam", "Default_opt-Adam_Adam-op0", "input", 9, Hint.GRADIENT),
        ("SGD", "Default_opt-SGD_SGD-op0", "input", 1, Hint.GRADIENT),
        ("Lamb", "Default_opt-Lamb_Lamb-op0", "input", 1, Hint.NONE),
        ("Parameter", "conv1_weight", "output", 0, Hint.WEIGHT),
        ("Parameter", "moments.fc.bias", "output", 0, Hint.OPTIMIZER_STATE),
        ("Parameter", "learning_rate", "output", 0, Hint.OPTIMIZER_STATE),
        ("Parameter", "inputs0", "output", 0, Hint.NONE),
        ("Functional.cross_entropy", "Functional.cross_entropy.0.forward", "output", 0, Hint.OF_LOSS),
        ("Module.Linear", "Module.fc.Linear.forward.0", "parameters.weight", -1, Hint.WEIGHT),
        ("Module.Linear", "Module.fc.Linear.backward.0", "input", 0, Hint.GRADIENT),
        ("Module.Linear", "Module.fc.Linear.parameters_grad", "parameters_grad.bias", -1, Hint.GRADIENT),
        ("Torch.relu", "Torch.relu.0.backward", "output", 0, Hint.GRADIENT),
    ],
)
def test_a_name_says_what_it_can(op_type: str, op_name: str, io: str, slot: int, hint: Hint) -> None:
    assert hint_of(op_type, op_name, io, slot) is hint


def roles(names: Sequence[tuple[str, str]], counts: Sequence[int], graphs: Sequence[str] = ()) -> list[str]:
    """Return the roles of outputs, in order of execution."""
    hints = hints_of((op_type, op_name, "output", 0) for op_type, op_name in names)
    graph_of = list(graphs) or ["0"] * len(names)
    return list(roles_of(hints, np.array(counts, np.float64), graph_of))


def test_the_loss_is_the_last_single_number_of_a_loss_function() -> None:
    names = [
        ("ReduceMean", "Default_net-LogLoss_ReduceMean-op0"),
        ("Neg", "Default_net-LogLoss_Neg-op0"),
        ("Neg", "Gradients_Default_net-LogLoss_Grad_Neg_Neg-op0"),
    ]
    assert roles(names, [1, 1, 1]) == ["activation", "loss", "gradient"]
    assert roles(names, [1, 4, 1]) == ["loss", "activation", "gradient"]


def test_without_a_loss_function_the_network_says_it() -> None:
    names = [
        ("ReduceMean", "Default_network-Attn_ReduceMean-op0"),
        ("Mul", "Expand__Muls_Mul-op0"),
        ("MatMul", "Gradients_Default_network-Attn_Grad_MatMul_MatMul-op0"),
        ("ReduceSum", "Default_network-Norm_ReduceSum-op0"),
    ]
    assert roles(names, [1, 1, 9, 1]) == ["loss", "gradient", "gradient", "activation"]
    assert roles(names[:1], [1]) == ["activation"], "nothing is trained"


def test_names_without_scope_are_backward_after_the_loss() -> None:
    names = [
        ("MatMul", "MatMul-op44"),
        ("SparseSoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits-op45"),
        ("SparseSoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits-op46"),
        ("MatMul", "MatMul-op47"),
    ]
    assert roles(names, [10, 1, 10, 10]) == ["activation", "loss", "gradient", "gradient"]
