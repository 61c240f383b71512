"""How much tensors may differ: facts, rounding, noise, limits of users, and programs that differ."""

import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ingest.questions.compare.dataflow import Dataflow
from ingest.questions.compare.differences import Judgement, Measured
from ingest.questions.compare.html import to_html
from ingest.questions.compare.judge import Judge
from ingest.questions.compare.mapping import load_mapping
from ingest.questions.compare.matching import mapping_text
from ingest.questions.compare.result import Comparison, Verdict
from ingest.questions.compare.run import compare
from ingest.questions.compare.thresholds import (
    ThresholdLimits,
    ThresholdRule,
    Thresholds,
    default_limit,
    load_thresholds,
    longest_sum,
    relative_difference,
    rounding,
)
from tests.stores import DumpLibrary, MadeDump, MadeRun, Values, ingest_directly, unpack
from workers.arrays.comparison import Metrics, RunningComparison, no_difference
from workers.arrays.statistics import Statistics
from workers.errors import UsageError
from workers.store.consolidated.blocks import TensorKey

# What is a fact, what is rounding, what is noise, and what nobody computed with.


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


def _measured(a: Iterable[npt.NDArray[np.float32]], b: Iterable[npt.NDArray[np.float32]]) -> list[Measured]:
    tensors = []
    for number, sides in enumerate(zip(a, b, strict=True)):
        running = RunningComparison()
        running.update(*sides)
        metrics = running.result()
        known = None if metrics.bit_equal else metrics
        tensors.append(Measured(number, ("float32", "float32"), (64,), known))
    return tensors


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
    assert "3 calls like it, with the same bytes, gave the same before" in found.reason


@pytest.mark.parametrize(
    ("layers", "difference", "verdict"),
    [
        (1, _metrics(1e-7), Verdict.CLOSE),
        (2, _metrics(1e-7), Verdict.CLOSE),
        # Rounding in another order may well differ in a few of 4096 elements.
        (3, _metrics(1e-7, share=3 / 4096), Verdict.CLOSE),
        # The last bits of many elements may be of another kernel.
        (4, _metrics(5e-8), Verdict.CLOSE),
        (4, _metrics(5e-8, share=1 / 128), Verdict.DIFFERENT),
    ],
)
def test_how_many_equal_operators_show_that_one_must_be_equal(
    layers: int, difference: Metrics, verdict: Verdict
) -> None:
    keys = [key for layer in range(layers) for key in _module(f"layers.{layer}")]
    last = f"layers.{layers - 1}.output"
    assert _judged(keys, {last: difference})[last].verdict is verdict


def test_operators_that_rounded_otherwise_once_are_no_witnesses() -> None:
    keys = [key for layer in range(5) for key in _module(f"layers.{layer}")]
    found = _judged(keys, {f"layers.{layer}.output": _metrics(1e-7) for layer in (0, 4)})
    assert {each.verdict for each in found.values()} == {Verdict.EQUAL, Verdict.CLOSE}


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

    judge.judge(_measured(values, other), flow, lambda n: (values[n], other[n]))
    next_a, next_b = values.copy(), other.copy()
    next_a[0] -= np.float32(1e-3) * np.sign(values[1])
    next_b[0] -= np.float32(1e-3) * np.sign(other[1])
    if moved == "elsewhere":
        next_a[0, 40] += np.float32(1e-3)
    found = judge.judge(_measured(next_a, next_b), flow, lambda n: (next_a[n], next_b[n]))
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
        return _measured([a_of.get(number, self.b) for number in range(5)], [self.b] * 5)


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


def test_gradients_of_other_samples_are_ignored_and_parameters_and_their_gradients_are_not() -> None:
    """Of a parameter, all calls of a step are added up: so it is the gradient of the same samples."""
    step = _Gradients()
    turned = np.roll(step.b, 1)
    tensors = step.measured({4: turned, 2: turned, 1: step.b + np.float32(1e-3)})
    found = Judge().judge(tensors, step.flow, lambda _: None, has_other_calls=True)
    assert [found[n].verdict for n in (4, 2, 1)] == [Verdict.IGNORED, Verdict.DIFFERENT, Verdict.DIFFERENT]


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


@pytest.mark.parametrize(("returned", "verdict"), [(0.01, Verdict.CLOSE), (0.5, Verdict.DIFFERENT)])
def test_a_mask_does_not_hide_how_far_apart_the_exponents_of_a_softmax_are(
    returned: float, verdict: Verdict
) -> None:
    """It is added as a large number, beside which nothing else counts in a relative difference."""
    keys = [key._replace(op_type="Functional.softmax") for key in _module("softmax.0")]
    scores = np.random.default_rng(0).standard_normal(_SHAPE).astype(np.float32)
    scores[:, 48:] = np.finfo(np.float32).min
    running = RunningComparison()
    running.update((scores + np.float32(0.01)).ravel(), scores.ravel())
    tensors = [
        Measured(0, ("float32", "float32"), _SHAPE, running.result()),
        Measured(1, ("float32", "float32"), _SHAPE, _metrics(returned)),
    ]
    known = Judge()
    known._known.coarsest = default_limit("bfloat16")  # which the scores are computed of
    assert known.judge(tensors, Dataflow(keys), lambda _: None)[1].verdict is verdict


def test_parameters_and_whole_numbers_do_not_tell_that_a_batch_is_in_the_same_order() -> None:
    """As lengths that are sorted, and the weights that a function is given."""
    model, layer = _module("model", kind="Model"), _module("fc")
    counted = [TensorKey("", "", "Tensor.sort", f"sort.{n}", "output", 0) for n in range(9)]
    keys = [
        TensorKey("", "", "Parameter", "fc.weight", "output", 0),
        model[0],
        *counted,
        *layer,
        TensorKey("", "", "Gradient", "fc.weight", "output", 0),
    ]
    rows = np.random.default_rng(0).standard_normal(_SHAPE).astype(np.float32)
    running = RunningComparison()
    running.update(rows.ravel(), rows[::-1].ravel())
    apart, rounded = running.result(), _metrics(1e-6)
    differences = {1: apart, 11: apart, 12: apart, 13: rounded}
    whole = range(2, 11)
    tensors = [
        Measured(n, ("int64", "int64") if n in whole else ("float32", "float32"), _SHAPE, differences.get(n))
        for n in range(len(keys))
    ]
    found = Judge().judge(tensors, Dataflow(keys), lambda _: (rows, rows[::-1]), is_last=True)
    assert {found[n].verdict for n in (1, 11, 12)} == {Verdict.NOT_READ}


# How much tensors may differ: by type, by name, and what is wrong with a file that says so.


FLOAT = ("float32", "float32")
SLIGHT = Metrics(100, 100, 0, 0, False, 1e-3, 1e-2, 1e-3, 1e-3, 0.999, 1e-2, 0.9, 0.95, 1.01)


def load(path: Path, text: str) -> Thresholds:
    path.write_text(text)
    return load_thresholds(path)


def test_a_whole_name_fits_although_it_has_brackets() -> None:
    rule = ThresholdRule(name="dump.layers[0]?.output.0", max_abs=1)
    assert rule.fits(("dump.layers[0]?.output.0", "z"), FLOAT)
    assert not rule.fits(("dump.layers[0].output.0", "z"), FLOAT)


@pytest.mark.parametrize(
    ("dtype", "limit"),
    [
        ("float64", 1e-9),
        ("complex128", 1e-9),
        ("float32", 1e-4),
        ("complex64", 1e-4),
        ("float16", 2e-3),
        ("bfloat16", 1.6e-2),
        ("float8_e4m3fn", 0.25),
        ("float8_e5m2", 0.5),
        ("int32", 0),
        ("bool", 0),
        ("int4", 0),
        ("hifloat8", 0),
        ("<U5", 0),
        ("no such type", 0),
    ],
)
def test_a_type_says_what_is_rounding(dtype: str, limit: float) -> None:
    assert default_limit(dtype) == pytest.approx(limit, rel=0.05)


def test_the_coarser_type_counts() -> None:
    limits = Thresholds().limits(("x", "x"), ("float32", "bfloat16"))
    assert limits.relative_euclidean == pytest.approx(1.6e-2, rel=0.05)


@pytest.mark.parametrize(
    "defaults",
    [
        {"bfloat16": ThresholdLimits(cosine=0.99)},
        {"bfloat16": ThresholdLimits(cosine=0.99), "float32": ThresholdLimits(max_abs=1e-6)},
    ],
    ids=["of the coarser type", "of both types"],
)
def test_a_limit_on_another_metric_is_as_coarse_as_its_type(defaults: dict[str, ThresholdLimits]) -> None:
    thresholds = Thresholds(defaults=defaults)
    for dtypes in (("bfloat16", "float32"), ("float32", "bfloat16")):
        assert thresholds.limits(("a", "b"), dtypes) == ThresholdLimits(cosine=0.99)


@pytest.mark.parametrize(
    ("limits", "broken"),
    [
        (ThresholdLimits(), ""),
        (ThresholdLimits(max_abs=1e-3), ""),
        (ThresholdLimits(max_abs=9e-4), "max_abs 0.001 > 0.0009"),
        (ThresholdLimits(max_relative=1e-3), "max_relative"),
        (ThresholdLimits(mean_relative=1e-4), "mean_relative"),
        (ThresholdLimits(rmse=1e-4), "rmse"),
        (ThresholdLimits(relative_euclidean=1e-3), "relative_euclidean"),
        (ThresholdLimits(relative_euclidean=0), "100 of 100 elements differ"),
        (ThresholdLimits(cosine=0.9999), "cosine 0.999 < 0.9999"),
        (ThresholdLimits(within_1_per_mille=0.91), "within_1_per_mille"),
        (ThresholdLimits(within_5_per_mille=0.96), "within_5_per_mille"),
        (ThresholdLimits(norm_ratio=0.005), "norm_ratio 1.01 is not 1"),
        (ThresholdLimits(norm_ratio=0.02), ""),
        (ThresholdLimits(max_relative=0, negligible=1e-2), ""),
    ],
)
def test_the_limit_that_does_not_hold_is_named(limits: ThresholdLimits, broken: str) -> None:
    assert limits.broken(SLIGHT).startswith(broken)
    assert bool(limits.broken(SLIGHT)) == bool(broken)
    assert limits.broken(no_difference(5)) == ""


def test_a_figure_that_is_not_defined_is_not_within_a_limit() -> None:
    unknown = replace(SLIGHT, max_abs=math.nan, relative_euclidean=math.nan, cosine=math.nan)
    assert ThresholdLimits(cosine=0.1).broken(unknown)
    assert ThresholdLimits(relative_euclidean=1).broken(unknown)
    assert ThresholdLimits(negligible=1, max_abs=1).broken(unknown)


def test_nan_in_one_of_the_two_is_a_difference_unless_it_may_be() -> None:
    odd = replace(no_difference(5), nan_mismatch=1, inf_mismatch=1)
    assert ThresholdLimits().broken(odd) == "2 NaN or Inf in one of the two"
    assert ThresholdLimits(negligible=1).broken(odd)
    assert ThresholdLimits(nan_inf_mismatch=2).broken(odd) == ""


def test_the_first_rule_that_fits_counts_alone(tmp_path: Path) -> None:
    found = load(
        tmp_path / "t.yaml",
        """
defaults:
  float32: {relative_euclidean: 0.5}
rules:
  - {name: "*Adam*", max_abs: 1e-3}
  - {regex: "^Dropout", ignore: true}
  - {dtype: "float16", cosine: 0.9}
""",
    )
    assert found.limits(("x.Adam.y", "z"), FLOAT) == ThresholdRule(name="*Adam*", max_abs=1e-3)
    assert found.limits(("z", "x.Adam.y"), FLOAT).max_abs == 1e-3
    dropped = found.limits(("Dropout.1", ""), FLOAT)
    assert isinstance(dropped, ThresholdRule)
    assert dropped.ignore
    assert found.limits(("x", "x"), ("float32", "float16")).cosine == 0.9
    assert found.limits(("x", "x"), FLOAT).relative_euclidean == 0.5
    assert found.limits(("x", "x"), ("int8", "int8")).relative_euclidean == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rules:\n- {name: x, max_abss: 1}", r":2: rules\.0\.max_abss: is not known"),
        ("rules:\n- name: x\n  cosine: 2", r":3: rules\.0\.cosine: .*less than or equal to 1"),
        ("rules:\n- name: x\n\n  max_abs: __import__('os')", r":4: rules\.0\.max_abs: .*number"),
        ("rules: [{max_abs: 1}]", "needs `name`"),
        ("rules: [{regex: '['}]", "regex"),
        ("defaults: {float33: {max_abs: 1}}", "is not a type of elements"),
        # numpy knows these two; no tensor has a type of this name.
        ("defaults: {half: {max_abs: 1}}", "'half' is not a type of elements, such as float32"),
        ("defaults: {f4: {max_abs: 1}}", "'f4' is not a type of elements"),
        ("default: {}", ":1: default: is not known"),
        ("rules: [{name: x, max_abs: -1}]", "greater than or equal"),
        ("rules: [{name: x, max_abs: .nan}]", "max_abs"),
        ("5", "must hold names and values"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load(tmp_path / "t.yaml", text)


@pytest.mark.parametrize("name", ["bool", "bfloat16", "complex32", "int4", "hifloat8", "<U3", "<f16"])
def test_any_type_that_tensors_have_may_have_limits(name: str) -> None:
    limits = ThresholdLimits(max_abs=1)
    assert Thresholds(defaults={name: limits}).limits(("a", "a"), (name, name)) == limits


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert load(tmp_path / "t.yaml", "") == Thresholds()


def test_statistics_may_differ_by_rounding() -> None:
    a = Statistics(10, 0, 0, 0, 1, 4, 5, min=-2.0, max=3.0, mean=0.1, std=1.0, l2_norm=5.0)
    reasons = {
        replace(a, mean=0.1001, max=3.0002): "",
        replace(a, mean=0.2): "mean 0.1 and 0.2",
        replace(a, nan_count=1): "nan_count 0 and 1",
        replace(a, nan_count=1, min=-9.0): "nan_count 0 and 1",
        replace(a, l2_norm=math.nan, nan_count=math.nan): "",
        replace(a, max=math.inf): "max 3 and inf",
    }
    mine, theirs = (np.array([row.as_row() for row in rows]) for rows in ([a] * len(reasons), reasons))
    limits = ThresholdLimits(relative_euclidean=1e-4)
    assert limits.broken_by_statistics(mine, theirs) == list(reasons.values())
    slightly = np.array([replace(a, max=3.00001).as_row()])
    assert ThresholdLimits().broken_by_statistics(mine[:1], slightly) == [""]


def test_the_examples_of_the_page_are_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[5] / "docs" / "command-line.md").read_text()
    examples = re.findall(r"^```yml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    path = tmp_path / "example.yaml"
    for text in examples:
        path.write_text(text)
        if text.startswith("pairs"):
            assert len(load_mapping(path).rules) == 2
        else:
            assert len(load_thresholds(path).rules) == 4


def test_a_regular_expression_that_takes_long_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thresholds = load(tmp_path / "limits.yml", "rules: [{regex: '^(a|aa)+[^a]$', ignore: true}]")
    monkeypatch.setattr(thresholds.rules[0]._pattern, "_left_s", 0.1)
    with pytest.raises(UsageError, match="takes too long for 'aaa"):
        thresholds.limits(("a" * 80, "b"), ("float32", "float32"))


# Programs that differ: of two versions or frameworks, compiled, or dumped before an update and after it.


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Stores of what DebugMode logged of one net: eager, compiled by Inductor, and that with a mistake."""
    directory = tmp_path_factory.mktemp("logs")
    unpack("pt/pytorch-logs", directory)
    dump = directory / "pytorch-logs" / "debugmode-json" / "dump"
    for name in ("eager", "compile_inductor", "mistake"):
        (directory / name).mkdir()
    shutil.copy(dump / "eager.json", directory / "eager")
    shutil.copy(dump / "compile_inductor.json", directory / "compile_inductor")
    text = (dump / "compile_inductor.json").read_text()
    told = json.loads(text)
    last = [log for log in told["logs"] if (log.get("op_name") or "").startswith("aten::addmm")][-1]
    right = last["log"]["items"][-1][1]["value"]
    (directory / "mistake" / "mistake.json").write_text(text.replace(repr(right), repr(right * 1.25)))
    stores = {}
    for name in ("eager", "compile_inductor", "mistake"):
        stores[name] = directory / f"{name}.zarr"
        ingest_directly(directory / name, stores[name])
    return stores


def test_compiled_code_does_the_same_as_eager_code(logs: dict[str, Path]) -> None:
    found = compare(logs["compile_inductor"], logs["eager"], ignore_unmatched=True)
    assert (found.verdict, found.first) == ("close", None)
    programs = found.to_dict()["programs"]
    assert (programs["operators_a"], programs["operators_b"], programs["common"]) == (16, 32, 15)
    fused = {gap["name"].split(".")[1] for gap in programs["gaps"] if gap["why"] == "fused"}
    assert {"native_layer_norm", "gelu", "add"} <= fused
    assert "A ran 16 operators, B 32, and 15 are the same" in " ".join(found.notes)


def test_two_frameworks_do_the_same(torch: object, dumps: DumpLibrary, tmp_path: Path) -> None:
    """PyTorch against MindSpore: one step of training from the same weights."""
    assert torch is not None
    from tests.torch_lenet import record_lenet  # deferred: it imports torch, which may be missing

    reference, store = tmp_path / "mindspore.zarr", tmp_path / "torch.zarr"
    ingest_directly(dumps["mindspore-2-versions"] / "lenet-2.10.0", reference)
    record_lenet(reference, tmp_path / "dump")
    ingest_directly(tmp_path / "dump", store)
    found = compare(f"{store}@step=0", f"{reference}@step=0", keep_equal=True, ignore_unmatched=True)
    assert found.is_within, [(row.name, row.reason) for row in found.worst(5)]
    rows = {row.name_a: row for row in found.tensors if row.name_a and row.name_b}
    assert rows["Torch.conv2d.features.0.0.conv2d.0.output.0"].name_b.startswith("Conv2D.")
    assert {row.matched for row in rows.values()} == {"content"}
    assert len(rows) >= 55


NETWORKS = ("lenet", "explode")


@pytest.fixture(scope="module")
def stores(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """By network: a store of version 2.0.0, and one of 2.10.0."""
    directory = tmp_path_factory.mktemp("versions")
    for path in dumps["mindspore-2-versions"].iterdir():
        ingest_directly(path, directory / f"{path.name}.zarr")
    return {
        network: (f"{directory}/{network}-2.0.0.zarr", f"{directory}/{network}-2.10.0.zarr")
        for network in NETWORKS
    }


@pytest.fixture(scope="module")
def compared(stores: dict[str, tuple[str, str]]) -> dict[str, Comparison]:
    """By network: version 2.0.0 compared with 2.10.0."""
    return {network: compare(*both, keep_equal=True) for network, both in stores.items()}


@pytest.mark.parametrize(
    ("network", "names", "paired"), [("lenet", (155, 195, 3), 152), ("explode", (140, 210, 4), 134)]
)
def test_all_pairs_are_the_same_tensor(
    compared: dict[str, Comparison], network: str, names: tuple[int, int, int], paired: int
) -> None:
    """The same weights and inputs give the same numbers: a wrong pair would differ."""
    comparison = compared[network]
    assert (comparison.names.a, comparison.names.b, comparison.names.common) == names
    counts = comparison.counts
    assert counts.keys() <= {Verdict.EQUAL, Verdict.CLOSE, Verdict.ONLY_A, Verdict.ONLY_B}
    steps = len(comparison.steps)
    assert counts[Verdict.EQUAL] + counts[Verdict.CLOSE] == paired * steps
    assert counts[Verdict.ONLY_A] == (names[0] - paired) * steps
    assert comparison.first is None


def test_every_guess_is_marked(compared: dict[str, Comparison]) -> None:
    comparison = compared["lenet"]
    by_how = Counter(tensor.matched for tensor in comparison.tensors if tensor.guessed)
    assert by_how == comparison.guessed == {"content": 130, "spelling": 16, "producers": 3}
    assert {tensor.matched for tensor in comparison.tensors if not tensor.guessed} == {"", "exact"}
    row = comparison.to_dict()
    assert row["names"] == {"a": 155, "b": 195, "common": 3}
    assert any(tensor["guessed"] and tensor["matched"] == "content" for tensor in row["tensors"])
    assert "B knows 3 of 155 names of A" in comparison.notes[0]
    assert "149 pairs of tensors are guesses (" in " ".join(comparison.notes)
    page = to_html(comparison)
    assert page.count("guess: content") == 130
    assert "names of A" in page


def test_what_is_not_paired_says_why(compared: dict[str, Comparison]) -> None:
    """All but two parameters, which 2.0.0 does not dump: the counter of steps, and the labels."""
    for comparison in compared.values():
        alone = {
            tensor.name_a or tensor.name_b: tensor.reason
            for tensor in comparison.tensors
            if tensor.verdict in (Verdict.ONLY_A, Verdict.ONLY_B)
        }
        unexplained = {name for name, reason in alone.items() if not reason}
        assert unexplained <= {"Parameter.global_step.output.0", "Parameter.inputs1.output.0"}
    reason = alone["ReduceMean.ReduceMean-op78.input.1"]
    assert reason.startswith("ReduceMean.Default_")
    assert reason.endswith(" of B, its counterpart, does not have it")


def test_what_was_fused_is_compared_by_its_output(compared: dict[str, Comparison]) -> None:
    fused = [tensor for tensor in compared["lenet"].tensors if tensor.op_type.endswith("Fusion")]
    pairs = {tensor.name_a.split(".")[0]: tensor.name_b for tensor in fused if tensor.name_b}
    assert pairs["MatMulBiasAddFusion"].startswith(
        "BiasAdd.Default_network-WithLossCell__backbone-LeNet5_fc3-"
    )
    assert pairs["MatMulBiasAddReluFusion"].startswith("ReLU.")
    inputs = {tensor.name_a: tensor.name_b for tensor in fused if tensor.name_b and tensor.io == "input"}
    # What the parts read is read by the whole: by content.
    assert {name.split(".")[0] for name in inputs.values()} == {"MatMul", "BiasAdd"}


def test_the_order_of_execution_may_differ(compared: dict[str, Comparison]) -> None:
    """Content tells the gradients of two biases apart in the first step; in the second it is another."""
    tensors = compared["explode"].tensors
    biases = [tensor for tensor in tensors if tensor.op_type == "BiasAddGrad" and tensor.name_a]
    by_name: dict[str, set[str]] = {tensor.name_a: set() for tensor in biases}
    for tensor in biases:
        by_name[tensor.name_a].add(tensor.name_b)
    assert len(by_name) == 6
    assert all(len(names) == 1 for names in by_name.values())
    assert {tensor.verdict for tensor in biases} <= {Verdict.EQUAL, Verdict.CLOSE}


@pytest.mark.parametrize("network", NETWORKS)
def test_the_suggested_mapping_gives_the_same_answer(
    stores: dict[str, tuple[str, str]], compared: dict[str, Comparison], network: str, tmp_path: Path
) -> None:
    path = tmp_path / "map.yml"
    comparison = compared[network]
    path.write_text(mapping_text(comparison.guesses, {"a": comparison.a, "b": comparison.b}))
    again = compare(*stores[network], mapping=load_mapping(path), keep_equal=True)
    assert again.counts == comparison.counts
    assert not again.guessed
    assert [(tensor.name_a, tensor.name_b) for tensor in again.tensors] == [
        (tensor.name_a, tensor.name_b) for tensor in comparison.tensors
    ]


def test_one_version_is_not_guessed_at(stores: dict[str, tuple[str, str]]) -> None:
    """Names that most of both sides share are meant as they are."""
    same = compare(stores["lenet"][0], stores["lenet"][0])
    assert (same.verdict, same.guessed) == ("equal", {})


def test_other_releases_too(dumps: DumpLibrary, tmp_path: Path) -> None:
    for version in ("2.0.0", "2.7.1"):
        ingest_directly(dumps[f"mindspore-{version}-cpu-sync"] / "lenet", tmp_path / f"{version}.zarr")
    comparison = compare(tmp_path / "2.0.0.zarr@0,0", tmp_path / "2.7.1.zarr@0,0")
    assert comparison.counts[Verdict.ONLY_A] == 4
    assert comparison.guessed == {"scope": 6, "spelling": 8, "producers": 49}


RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(4, 5)).astype(np.float32)
DATA = RNG.normal(size=(3, 4)).astype(np.float32)
NAMES = {
    "old": ("fc.weight", "MatMul.MatMul-op1", "Mul.Mul-op3"),
    "new": ("fc_weight", "MatMul.Default_net-Net_fc-Dense_MatMul-op0", ""),
}


def program(root: Path, version: str, dumped: Values, read: Values) -> Path:
    """Dump a program of one of two versions: a parameter, and the operator that reads it."""
    run = MadeRun(MadeDump(root))
    parameter, product, other = NAMES[version]
    run.parameter(parameter, dumped)
    run.op(product, [DATA, read], [DATA @ read])
    if other:  # without an operator of one side, these are not two programs
        run.op(other, [DATA], [DATA * 2])
    return root


@pytest.mark.parametrize("in_store", [True, False], ids=["stores", "dumps"])
@pytest.mark.parametrize("updated", ["old", "new"])
def test_a_parameter_that_is_read_alike_may_have_been_updated(
    tmp_path: Path, updated: str, *, in_store: bool
) -> None:
    sides = []
    for version in NAMES:
        dump = program(tmp_path / version, version, WEIGHT + 0.1 * (version == updated), WEIGHT)
        if in_store:
            ingest_directly(dump, tmp_path / f"{version}.zarr")
        sides.append(tmp_path / f"{version}.zarr" if in_store else dump)
    for a, b in (sides, sides[::-1]):
        (row,) = (row for row in compare(a, b).tensors if row.op_type == "Parameter")
        assert (row.verdict, row.reason[:24]) == (Verdict.IGNORED, "dumped before its update")


@pytest.mark.parametrize("read", [WEIGHT, WEIGHT + 1], ids=["as neither was dumped", "otherwise"])
def test_a_parameter_that_nothing_shows_to_be_updated_differs(tmp_path: Path, read: Values) -> None:
    old = program(tmp_path / "old", "old", WEIGHT + 2, read)
    new = program(tmp_path / "new", "new", WEIGHT + 3, WEIGHT)
    (row,) = (row for row in compare(old, new).tensors if row.op_type == "Parameter")
    assert row.verdict is Verdict.DIFFERENT
