"""What is a fact, what is rounding, what is noise, and what nobody computed with."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from ingest.questions.compare.dataflow import Dataflow
from ingest.questions.compare.differences import Judgement, Measured
from ingest.questions.compare.judge import Judge
from ingest.questions.compare.result import Verdict
from ingest.questions.compare.thresholds import longest_sum, relative_difference, rounding
from workers.arrays.comparison import Metrics, RunningComparison
from workers.store.consolidated.blocks import TensorKey

_SHAPE = (64, 64)


def _metrics(relative: float, share: float = 1.0) -> Metrics | None:
    """Return metrics of a tensor of root mean square 1."""
    if not relative:
        return None
    running = RunningComparison()
    b = np.random.default_rng(0).standard_normal(math.prod(_SHAPE)).astype(np.float32)
    b /= np.float32(np.sqrt(np.mean(b**2)))
    a = b.copy()
    count = max(round(share * b.size), 1)
    a[:count] += np.float32(relative / math.sqrt(share))
    running.update(a, b)
    return running.result()


def _module(name: str, *, kind: str = "Linear") -> list[TensorKey]:
    return [TensorKey("", "", f"Module.{kind}", name, io, 0) for io in ("input", "output")]


def _judged(
    keys: list[TensorKey], differences: dict[str, Metrics | None], judge: Judge | None = None
) -> dict[str, Judgement]:
    """Judge a step in which only these tensors differ."""
    flow = Dataflow(keys)
    tensors = [
        Measured(number, ("float32", "float32"), _SHAPE, differences.get(f"{key.op_name}.{key.io}"))
        for number, key in enumerate(keys)
    ]
    judgements = (judge or Judge()).judge(tensors, flow, lambda _: None)
    return {f"{keys[n].op_name}.{keys[n].io}": each for n, each in judgements.items()}


def test_an_operator_that_read_the_same_and_returned_other_bytes_is_different_however_little() -> None:
    keys = [key for layer in range(4) for key in _module(f"layers.{layer}", kind="Norm")]
    found = _judged(keys, {"layers.3.output": _metrics(1e-7)})["layers.3.output"]
    assert (found.verdict, found.level, found.bound.explained) == (Verdict.DIFFERENT, "shown", False)
    assert found.bound.times < 1
    assert "3 others like it are equal" in found.reason


@pytest.mark.parametrize("equal_before", [0, 1])
def test_without_witnesses_a_limit_decides(equal_before: int) -> None:
    keys = [key for layer in range(equal_before + 1) for key in _module(f"layers.{layer}")]
    found = _judged(keys, {f"layers.{equal_before}.output": _metrics(1e-7)})
    assert found[f"layers.{equal_before}.output"].verdict is Verdict.CLOSE


def test_operators_that_rounded_otherwise_once_are_no_witnesses() -> None:
    keys = [key for layer in range(5) for key in _module(f"layers.{layer}")]
    found = _judged(keys, {f"layers.{layer}.output": _metrics(1e-7) for layer in (0, 4)})
    assert {each.verdict for each in found.values()} == {Verdict.EQUAL, Verdict.CLOSE}


def test_few_elements_that_were_equal_do_not_show_that_one_element_must_be() -> None:
    """Rounding in another order may well differ in a few of 4096 elements."""
    keys = [key for layer in range(3) for key in _module(f"layers.{layer}")]
    found = _judged(keys, {"layers.2.output": _metrics(1e-7, share=3 / 4096)})
    assert found["layers.2.output"].verdict is Verdict.CLOSE


def test_what_an_operator_read_explains_what_it_returned() -> None:
    keys = [*_module("a"), *_module("b"), *_module("c")]
    differ = {"a.output": 0.1, "b.input": 0.1, "b.output": 0.2, "c.output": 0.2}
    found = _judged(keys, {name: _metrics(size) for name, size in differ.items()})
    assert not found["a.output"].bound.explained
    assert found["b.output"].bound.explained
    assert not found["c.output"].bound.explained  # it read the same
    assert found["c.output"].level == "shown"


def test_a_gradient_that_is_zero_in_exact_arithmetic_is_noise() -> None:
    gradients = [TensorKey("", "", "Gradient", name, "output", 0) for name in ("q.bias", "k.bias", "v.bias")]
    tiny = RunningComparison()
    b = np.random.default_rng(0).standard_normal(math.prod(_SHAPE)) * 1e-8
    tiny.update(b[::-1].copy(), b)
    found = _judged(
        gradients,
        {"q.bias.output": _metrics(1e-6), "k.bias.output": tiny.result(), "v.bias.output": _metrics(1e-6)},
    )
    assert [each.verdict for each in found.values()] == [Verdict.CLOSE, Verdict.NOISE, Verdict.CLOSE]


@pytest.mark.parametrize(
    ("moved", "verdict"),
    [("where its gradient is uncertain", Verdict.NOISE), ("elsewhere", Verdict.DIFFERENT)],
)
def test_a_parameter_moves_as_far_as_its_gradient_is_uncertain(moved: str, verdict: Verdict) -> None:
    keys = [TensorKey("", "", kind, "k.bias", "output", 0) for kind in ("Parameter", "Gradient")]
    flow, judge = Dataflow(keys), Judge()
    values = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    other = values.copy()
    other[1, :32] *= -1  # of these, not even the sign is known
    values[1, :32] *= 1e-7
    other[1, :32] *= 1e-7

    def measured(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> list[Measured]:
        tensors = []
        for number in range(2):
            running = RunningComparison()
            running.update(a[number], b[number])
            metrics = running.result()
            tensors.append(
                Measured(number, ("float32", "float32"), (64,), None if metrics.bit_equal else metrics)
            )
        return tensors

    judge.judge(measured(values, other), flow, lambda n: (values[n], other[n]))
    next_a, next_b = values.copy(), other.copy()
    next_a[0] -= np.float32(1e-3) * np.sign(values[1])
    next_b[0] -= np.float32(1e-3) * np.sign(other[1])
    if moved == "elsewhere":
        next_a[0, 40] += np.float32(1e-3)
    found = judge.judge(measured(next_a, next_b), flow, lambda n: (next_a[n], next_b[n]))
    assert found[0].verdict is verdict


class _Gradients:
    """A step of two parameters and their gradients, and the gradient of an activation."""

    def __init__(self) -> None:
        gradient = TensorKey("", "", "Gradient", "head.output", "output", 0)
        parameters = [
            TensorKey("", "", kind, name, "output", 0) for kind in ("Parameter", "Gradient") for name in "ab"
        ]
        self.flow = Dataflow([*parameters, gradient])
        self.b = np.random.default_rng(0).standard_normal(64).astype(np.float32)

    def measured(self, a_of: dict[int, npt.NDArray[np.float32]]) -> list[Measured]:
        tensors = []
        for number in range(5):
            running = RunningComparison()
            running.update(a_of.get(number, self.b), self.b)
            metrics = running.result()
            known = None if metrics.bit_equal else metrics
            tensors.append(Measured(number, ("float32", "float32"), (64,), known))
        return tensors


@pytest.mark.parametrize(("moved", "blamed"), [(0.0, False), (1e-3, True)])
def test_a_factor_of_all_gradients_is_judged_by_the_update(moved: float, blamed: bool) -> None:
    step, judge = _Gradients(), Judge()
    b = step.b
    scaled = dict.fromkeys((2, 3, 4), 2 * b)
    found = judge.judge(step.measured(scaled), step.flow, lambda _: None)
    assert [found[number].verdict for number in (2, 3, 4)] == [Verdict.CLOSE] * 3
    assert judge.scaled == 2
    judge.judge(step.measured({1: b + np.float32(moved)} if moved else {}), step.flow, lambda _: None)
    assert judge.blames_scale is blamed
    last = Judge().judge(step.measured(scaled), step.flow, lambda _: None, is_last=True)
    assert last[2].verdict is Verdict.DIFFERENT


def test_a_factor_that_no_gradient_of_a_parameter_has_is_a_difference() -> None:
    """Each rank divided by its own number of targets: the factors do not survive their sum."""
    step = _Gradients()
    turned = np.roll(step.b, 1)
    scaled = {2: step.b + turned, 3: step.b - turned, 4: 2 * step.b}
    found = Judge().judge(step.measured(scaled), step.flow, lambda _: None)
    assert found[4].verdict is Verdict.DIFFERENT


@pytest.mark.parametrize(("averaged", "verdict"), [(2.0, Verdict.CLOSE), (4.0, Verdict.DIFFERENT)])
def test_a_mean_of_parts_whose_sum_has_the_factor_of_all_gradients_has_it_too(
    averaged: float, verdict: Verdict
) -> None:
    step = _Gradients()
    tensors = step.measured({2: step.b + np.float32(1e-7), 3: 2 * step.b, 4: 2 * step.b})
    tensors[2] = tensors[2]._replace(averaged=averaged)
    found = Judge().judge(tensors, step.flow, lambda _: None)
    assert [found[number].verdict for number in (2, 3, 4)] == [Verdict.CLOSE, verdict, verdict]


def test_gradients_of_other_samples_are_ignored_and_parameters_are_not() -> None:
    step = _Gradients()
    tensors = step.measured({2: np.roll(step.b, 1), 1: step.b + np.float32(1e-3)})
    found = Judge().judge(tensors, step.flow, lambda _: None, has_other_calls=True)
    assert (found[2].verdict, found[1].verdict) == (Verdict.IGNORED, Verdict.DIFFERENT)


def test_what_nothing_was_computed_from_is_not_read() -> None:
    keys = [TensorKey("", "", "dump", name, "output", 0) for name in "abcdef"]
    found = _judged(keys, {"b.output": _metrics(0.3)})
    assert found["b.output"].verdict is Verdict.NOT_READ
    assert _judged(keys, {"d.output": _metrics(0.3)})["d.output"].verdict is Verdict.DIFFERENT


def test_a_tensor_whose_reader_has_other_bytes_was_caught_in_flight() -> None:
    keys = [*_module("a"), *_module("b")]
    digests = [[b"x", b"torn", b"y", b"z"], [b"x", b"y", b"y", b"z"]]
    flow = Dataflow(keys, (digests[0], digests[1]), {number: number for number in range(4)})
    tensors = [
        Measured(number, ("float32", "float32"), _SHAPE, _metrics(0.3) if number == 1 else None)
        for number in range(4)
    ]
    found = Judge().judge(tensors, flow, lambda _: None)
    assert found[1].verdict is Verdict.NOT_READ
    assert "caught in flight" in found[1].reason


def test_limits_grow_with_the_length_of_sums_and_not_for_exact_types() -> None:
    assert rounding(("float32", "float32"), 1) < rounding(("float32", "float32"), 10_000) < 1e-4
    assert rounding(("bfloat16", "float32"), 1) > 1e-3
    assert rounding(("int64", "int64"), 100) == 0
    assert longest_sum([(), (8,), (4, 16, 32)]) == 64


def test_nan_in_one_of_two_tensors_is_no_number() -> None:
    running = RunningComparison()
    running.update(np.array([1.0, np.nan]), np.array([1.0, 2.0]))
    assert relative_difference(running.result()) == math.inf


def _of_gradients(sizes: dict[str, float]) -> Judgement:
    """Judge the gradient of a bias that differs by 1e-3, of which these are the root mean squares."""
    keys = [*_module("conv"), *(TensorKey("", "", "Gradient", f"conv.{of}", "output", 0) for of in sizes)]
    shapes = [_SHAPE, _SHAPE, (64, 64), (64,)]
    tensors = [
        Measured(number, ("float32", "float32"), shape, _metrics(1e-3 if number == 3 else 0.0), rms=rms)
        for number, (shape, rms) in enumerate(zip(shapes, (1.0, 1.0, *sizes.values()), strict=True))
    ]
    return Judge().judge(tensors, Dataflow(keys), lambda _: None, is_last=True)[3]


def test_rounding_is_relative_to_what_is_added_up_and_not_to_what_cancels() -> None:
    """Of 64 gradients of size 1, a sum of about 8 is likely: one of 1e-3 has cancelled."""
    assert _of_gradients({"output": 1.0, "bias": 8.0}).verdict is Verdict.DIFFERENT
    assert _of_gradients({"output": 1.0, "bias": 1e-3}).verdict is Verdict.CLOSE


@pytest.mark.parametrize(("agrees", "verdict"), [(True, Verdict.NOT_READ), (False, Verdict.DIFFERENT)])
def test_memory_that_an_operator_writes_over_is_not_what_it_read(agrees: bool, verdict: Verdict) -> None:
    keys = [key._replace(op_type="Tensor.scatter_") for key in _module("scatter_.0")]
    differences = {"scatter_.0.input": _metrics(1.0), "scatter_.0.output": None if agrees else _metrics(1.0)}
    assert _judged(keys, differences)["scatter_.0.input"].verdict is verdict


def test_a_buffer_is_not_read_before_something_is_received_into_it() -> None:
    (buffer,) = (key._replace(op_type="Distributed.recv") for key in _module("recv.0") if key.io == "input")
    assert _judged([buffer], {"recv.0.input": _metrics(1.0)})["recv.0.input"].verdict is Verdict.NOT_READ
    sent = buffer._replace(op_type="Distributed.send")
    assert _judged([sent], {"recv.0.input": _metrics(1.0)})["recv.0.input"].verdict is Verdict.DIFFERENT


@pytest.mark.parametrize(("gradient", "verdict"), [(1e-6, Verdict.NOT_READ), (1e-2, Verdict.DIFFERENT)])
def test_calls_that_are_cut_otherwise_hold_other_samples_if_gradients_agree(
    gradient: float, verdict: Verdict
) -> None:
    parameter, of_it = (
        TensorKey("", "", kind, "fc.weight", "output", 0) for kind in ("Parameter", "Gradient")
    )
    keys = [parameter, *_module("fc"), *_module("loss"), of_it]
    differences = {3: _metrics(0.01), 4: _metrics(0.01), 5: _metrics(gradient)}
    tensors = [Measured(n, ("float32", "float32"), _SHAPE, differences.get(n)) for n in range(len(keys))]
    found = Judge().judge(tensors, Dataflow(keys), lambda _: None, is_last=True, has_other_shapes=True)
    assert found[4].verdict is verdict


def test_a_module_is_rounded_to_the_coarsest_type_within_it() -> None:
    outer, inner = _module("layer", kind="Layer"), _module("layer.mlp")
    keys = [outer[0], *inner, outer[1]]
    dtypes = ["float32", "bfloat16", "bfloat16", "float32"]
    differences = {"layer.mlp.output": _metrics(1e-3), "layer.output": _metrics(1e-3)}
    tensors = [
        Measured(number, (dtype, dtype), _SHAPE, differences.get(f"{key.op_name}.{key.io}"))
        for number, (key, dtype) in enumerate(zip(keys, dtypes, strict=True))
    ]
    numbers = {number: number for number in range(len(keys))}
    flow = Dataflow(keys, None, numbers, (dtypes, dtypes))
    judgements = Judge().judge(tensors, flow, lambda _: None)
    assert {each.verdict for each in judgements.values()} == {Verdict.EQUAL, Verdict.CLOSE}
    plain = Judge().judge(tensors, Dataflow(keys, None, numbers), lambda _: None)
    assert plain[3].bound.limit < judgements[3].bound.limit


@pytest.mark.parametrize(("modules", "verdict"), [(4, Verdict.DIFFERENT), (64, Verdict.CLOSE)])
def test_rounding_of_narrow_types_adds_up_over_many_operators(modules: int, verdict: Verdict) -> None:
    keys = [key for layer in range(modules) for key in _module(f"layers.{layer}")]
    tensors = [Measured(n, ("bfloat16", "bfloat16"), _SHAPE, _metrics(0.012)) for n in range(len(keys) - 1)]
    tensors.append(Measured(len(keys) - 1, ("bfloat16", "bfloat16"), _SHAPE, _metrics(0.025)))
    judgements = Judge().judge(tensors, Dataflow(keys), lambda _: None)
    assert {judgements[n].verdict for n in range(len(keys) - 1)} == {Verdict.CLOSE}
    assert judgements[len(keys) - 1].verdict is verdict


def test_samples_may_be_in_another_order_along_the_second_axis() -> None:
    """Of tokens first; gradients of parameters were not dumped, and parameters agree."""
    values = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    sides = values, np.ascontiguousarray(values[:, ::-1])
    running = RunningComparison()
    running.update(sides[0].ravel(), sides[1].ravel())
    keys = _module("embedding") + [TensorKey("", "", "Parameter", f"p{n}", "output", 0) for n in range(4)]
    tensors = [
        Measured(n, ("float32", "float32"), (8, 4), running.result() if n < 2 else None)
        for n in range(len(keys))
    ]
    judgements = Judge().judge(tensors, Dataflow(keys), lambda _: sides)
    assert {each.verdict for each in judgements.values()} == {Verdict.CLOSE, Verdict.EQUAL}


def test_the_last_bits_of_many_elements_may_be_of_another_kernel() -> None:
    keys = [key for layer in range(4) for key in _module(f"layers.{layer}")]
    assert _judged(keys, {"layers.3.output": _metrics(5e-8)})["layers.3.output"].verdict is Verdict.CLOSE
    few = _judged(keys, {"layers.3.output": _metrics(5e-8, share=1 / 128)})["layers.3.output"]
    assert few.verdict is Verdict.DIFFERENT
