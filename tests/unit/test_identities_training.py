"""Gradients, updates and collectives follow from what was recorded, and the mistakes of a step are told."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.identities.check import IdentityCheck, check
from ingest.identities.containers import results
from ingest.identities.gradients import added, parameter_gradients, scaled
from ingest.identities.optimizer import CLIPPED, CLIPPED_AWAY, LOST, RESET, ParameterHistory, rate_of
from ingest.identities.updates import UNKNOWN, ParameterUpdate, judged

Array = np.ndarray[Any, Any]


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


class Optimizer:
    """Computes in float32, as PyTorch does."""

    def __init__(self, name: str, rate: float, decay: float) -> None:
        self.name, self.rate, self.decay = name, np.float32(rate), np.float32(decay)
        self.first: Any = np.float32(0)
        self.second: Any = np.float32(0)
        self.count = 0

    def step(self, p: Array, g: Array) -> Array:
        self.count += 1
        if self.name == "AdamW":
            p = p * (np.float32(1) - self.rate * self.decay)
            self.first = np.float32(0.9) * self.first + np.float32(0.1) * g
            self.second = np.float32(0.999) * self.second + np.float32(0.001) * g * g
            root = np.sqrt(self.second) / np.float32((1 - 0.999**self.count) ** 0.5) + np.float32(1e-8)
            return np.asarray(p - self.rate / np.float32(1 - 0.9**self.count) * (self.first / root))
        g = g + self.decay * p
        self.first = np.float32(0.9) * self.first + g if self.name != "SGD" else g
        return np.asarray(p - self.rate * self.first)


def lion(p: Array, g: Array, state: dict[str, Any], _: int) -> Array:
    m = state.setdefault("m", np.zeros_like(g))
    direction = np.sign(np.float32(0.9) * m + np.float32(0.1) * g)
    state["m"] = np.float32(0.99) * m + np.float32(0.01) * g
    return np.asarray(p * np.float32(1 - 1e-4) - np.float32(1e-3) * direction)


def adafactor(p: Array, g: Array, state: dict[str, Any], count: int) -> Array:
    new = np.float32(count**-0.8)
    for axis in (0, 1):
        mean = (g * g).mean(axis, keepdims=True, dtype=np.float32)
        state[f"{axis}"] = (1 - new) * state.get(f"{axis}", np.zeros_like(mean)) + new * mean
    second = state["0"] * state["1"] / state["1"].mean()
    return np.asarray(p - np.float32(1e-3) * g / np.sqrt(second))


def muon(p: Array, g: Array, state: dict[str, Any], _: int) -> Array:
    momentum = state["m"] = np.float32(0.95) * state.get("m", np.zeros_like(g)) + g
    x = g + np.float32(0.95) * momentum
    x = x.T / (np.linalg.norm(x) + np.float32(1e-7))
    for _step in range(5):
        gram = x @ x.T
        x = np.float32(3.4445) * x + (np.float32(-4.775) * gram + np.float32(2.0315) * gram @ gram) @ x
    return np.asarray(p - np.float32(0.02) * x.T)


def decayed_nesterov(p: Array, g: Array, state: dict[str, Any], count: int) -> Array:
    return nesterov(p, g + np.float32(0.05) * p, state, count)


def rmsprop(p: Array, g: Array, state: dict[str, Any], _: int) -> Array:
    v = state["v"] = np.float32(0.95) * state.get("v", np.zeros_like(g)) + np.float32(0.05) * g * g
    return np.asarray(p - np.float32(1e-3) * g / (np.sqrt(v) + np.float32(1e-6)))


def nadam(p: Array, g: Array, state: dict[str, Any], count: int) -> Array:
    now, after = (0.9 * (1 - 0.5 * 0.96 ** (each * 0.004)) for each in (count, count + 1))
    product = state["product"] = state.get("product", 1.0) * now
    m = state["m"] = np.float32(0.9) * state.get("m", np.zeros_like(g)) + np.float32(0.1) * g
    v = state["v"] = np.float32(0.999) * state.get("v", np.zeros_like(g)) + np.float32(0.001) * g * g
    root = np.sqrt(v / np.float32(1 - 0.999**count)) + np.float32(1e-8)
    ahead, own = np.float32(after / (1 - product * after)), np.float32((1 - now) / (1 - product))
    return np.asarray(p - np.float32(1e-3) * (ahead * m + own * g) / root)


def nesterov(p: Array, g: Array, state: dict[str, Any], _: int) -> Array:
    momentum = state["m"] = np.float32(0.9) * state.get("m", np.zeros_like(g)) + g
    return np.asarray(p - np.float32(1e-2) * (g + np.float32(0.9) * momentum))


def unknown(p: Array, g: Array, state: dict[str, Any], count: int) -> Array:
    """Adam with betas that nobody uses."""
    m = state["m"] = np.float32(0.7) * state.get("m", np.zeros_like(g)) + np.float32(0.3) * g
    v = state["v"] = np.float32(0.8) * state.get("v", np.zeros_like(g)) + np.float32(0.2) * g * g
    root = np.sqrt(v / np.float32(1 - 0.8**count)) + np.float32(1e-8)
    return np.asarray(p - np.float32(1e-3 / (1 - 0.7**count)) * m / root)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (nesterov, "SGD with momentum, Nesterov, lr = 0.01"),
        (decayed_nesterov, "SGD with momentum, Nesterov, lr = 0.01, decay = 0.05"),
        (rmsprop, "RMSprop, alpha = 0.95, lr = 0.001"),
        (nadam, "NAdam, betas = 0.9, 0.999, lr = 0.001"),
        (lion, "Lion, betas = 0.9, 0.99, lr = 0.001, decay = 0.1"),
        (unknown, ""),
    ],
)
def test_an_optimizer_is_told_if_one_alone_gives_the_updates_of_its_parameters(step: Any, told: str) -> None:
    """The first update is that of several; parameters of few elements fit many."""
    found = found_of_parameters(step)
    assert {each.told for each in found if each.status == "holds"} == ({told} if told else set())
    if not told:
        assert {each.told for each in found} == {UNKNOWN}


def test_a_rate_that_rounding_hides_is_not_told() -> None:
    """Of a parameter of large values, only the first digits of a change are left."""
    *others, large = found_of_parameters(nadam, added=100.0)
    assert (large.status, large.told) == ("holds", "")
    assert {each.told for each in others} == {"NAdam, betas = 0.9, 0.999, lr = 0.001"}


def found_of_parameters(step: Any, added: float = 0.0) -> list[IdentityCheck]:
    """Return what is known of the sixth update of some parameters, the last of which has `added` in it."""
    shapes = [(24, 16), (20,), (40, 12), (16,)]
    values = [normal(*shape, seed=number) for number, shape in enumerate(shapes)]
    values[-1] += np.float32(added)
    histories = [ParameterHistory(value.astype(np.float64)) for value in values]
    states: list[dict[str, Any]] = [{} for _ in shapes]
    for count in range(1, 7):
        gradients = [normal(*each, seed=10 * count + number) for number, each in enumerate(shapes)]
        values = [step(p, g, state, count) for p, g, state in zip(values, gradients, states, strict=True)]
        updates = [
            ParameterUpdate(row, history, g.astype(np.float64), after)
            for row, (history, g, after) in enumerate(zip(histories, gradients, values, strict=True))
        ]
        found = [each for _, each in judged(updates, 1.0)]
        if count == 1:
            assert {each.told for each in found} == {""}
    assert not any(each.status == "fails" for each in found)
    return found


@pytest.mark.parametrize(("step", "rate"), [(lion, 1e-3), (adafactor, 1e-3), (muon, 0.02)])
def test_optimizers_with_other_states_are_known_by_their_updates(step: Any, rate: float) -> None:
    p, state = normal(40, 24) * np.float32(0.1), dict[str, Any]()
    history = ParameterHistory(p.astype(np.float64))
    for count in range(1, 6):
        g = normal(40, 24, seed=count) * np.float32(1e-2)
        after = step(p, g, state, count)
        history.advance(g.astype(np.float64))
        found = checked(history, g, after)
        history.follow(after.astype(np.float64), g.astype(np.float64), found.told)
        p = after
    assert found.status == "holds"
    assert found.told.lower().startswith(step.__name__)
    assert rate_of(found.told) == pytest.approx(rate, rel=1e-3)


def checked(history: ParameterHistory, g: Array, after: Array) -> IdentityCheck:
    return check(after, ((each, False) for each in history.expectations(g.astype(np.float64), after)))


@pytest.mark.parametrize(("name", "decay"), [("AdamW", 0.1), ("AdamW", 0), ("SGD", 0), ("momentum", 1e-2)])
@given(rate=st.sampled_from([1e-4, 1e-3, 1e-2]), size=st.sampled_from([1e-4, 1e-2, 1]))
@settings(max_examples=6, deadline=None)
def test_updates_follow_from_gradients(name: str, decay: float, rate: float, size: float) -> None:
    optimizer, p = Optimizer(name, rate, decay), normal(40, 24) * np.float32(0.1)
    history = ParameterHistory(p.astype(np.float64))
    for step in range(5):
        g = normal(40, 24, seed=step + 1) * np.float32(size)
        after = optimizer.step(p, g)
        history.advance(g.astype(np.float64))
        status = checked(history, g, after).status
        assert status == "holds" or (status == "open" and not step)
        history.change, history.gradient = after.astype(np.float64) - history.value, g.astype(np.float64)
        history.value, p = after.astype(np.float64), after


def test_the_rate_is_told_and_one_element_that_was_changed_is_named() -> None:
    p, g = normal(40, 24), normal(40, 24, seed=1)
    optimizer, history = Optimizer("AdamW", 1e-3, 0), ParameterHistory(p.astype(np.float64))
    after = optimizer.step(p, g)
    history.advance(g.astype(np.float64))
    assert "lr = 0.001" in checked(history, g, after).told
    after[7, 3] += np.float32(1e-3)
    found = checked(history, g, after)
    assert found.status == "fails"
    assert found.difference is not None
    assert found.difference.box == ((7, 8), (3, 4))
    assert checked(history, g, p + normal(40, 24, seed=3)).status == "open"


def told_of_steps(
    optimizer: Optimizer, steps: int, *, clip: float = 0.0, lost: int = -1, kept: int = -1, skipped: int = -1
) -> list[str]:
    """Return what is told of each update.

    The optimizer is a new one in the step `lost`, and does nothing in the step `skipped`; what it makes
    in the step `kept` is not written.
    """
    p, told = normal(40, 24) * np.float32(0.1), list[str]()
    history = ParameterHistory(p.astype(np.float64))
    for step in range(steps):
        g = normal(40, 24, seed=step + 1) * np.float32(1e-2)
        norm = float(np.linalg.norm(g.astype(np.float64)))
        if step == lost:
            optimizer.first, optimizer.second, optimizer.count = np.float32(0), np.float32(0), 0
        clipped = g * np.float32(clip / (norm + 1e-6)) if clip else g
        after = p if step == skipped else optimizer.step(p, clipped)
        after = p if step == kept else after
        history.advance(g.astype(np.float64), norm)
        found = checked(history, g, after)
        told.append(found.told if found.status == "holds" else found.status)
        history.follow(after.astype(np.float64), g.astype(np.float64), told[-1])
        p = after
    return told


@pytest.mark.parametrize("name", ["AdamW", "momentum"])
def test_states_that_begin_again_are_told(name: str) -> None:
    told = told_of_steps(Optimizer(name, 1e-2, 0), 8, lost=5)
    assert [RESET in each for each in told] == [step == 5 for step in range(8)]


@pytest.mark.parametrize(("name", "decay"), [("AdamW", 0.1), ("momentum", 0), ("momentum", 1e-2)])
def test_an_update_that_was_made_and_not_written_is_told_by_the_next(name: str, decay: float) -> None:
    told = told_of_steps(Optimizer(name, 1e-2, decay), 8, kept=4)
    assert [LOST in each for each in told] == [step == 5 for step in range(8)]


@pytest.mark.parametrize("name", ["AdamW", "momentum", "SGD"])
def test_an_optimizer_that_leaves_a_parameter_out_of_a_step_loses_no_update(name: str) -> None:
    told = told_of_steps(Optimizer(name, 1e-2, 0), 8, skipped=4)
    assert not any(LOST in each for each in told)


def test_gradients_that_are_clipped_are_told_and_those_that_are_clipped_to_nothing() -> None:
    usual = told_of_steps(Optimizer("AdamW", 1e-3, 0), 4, clip=1e-2)
    assert all(CLIPPED in each and CLIPPED_AWAY not in each for each in usual[1:])
    lost = told_of_steps(Optimizer("AdamW", 1e-3, 0), 4, clip=1e-8)
    assert all(CLIPPED_AWAY in each for each in lost[1:])
    assert all(rate_of(each) == pytest.approx(1e-3, rel=0.05) for each in lost[1:])


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("kind", ["linear", "layernorm", "embedding"])
def test_gradients_follow_from_what_a_module_read(kind: str, dtype: Any) -> None:
    x = np.arange(64) % 9 if kind == "embedding" else normal(64, 16)
    above = normal(64, 16 if kind != "linear" else 12, seed=1).astype(dtype)
    wide = above.astype(np.float64)
    narrow = x.astype(dtype).astype(np.float64)
    if kind == "linear":
        expected = wide.T @ narrow
    elif kind == "layernorm":
        deviation = x - x.mean(1, keepdims=True, dtype=np.float64)
        expected = (wide * deviation / np.sqrt(x.var(1, keepdims=True, dtype=np.float64) + 1e-5)).sum(0)
    else:
        expected = np.zeros((9, 16))
        np.add.at(expected, x, wide)
    actual = expected.astype(dtype).astype(np.float32)
    unit = 2.0**-8 if dtype is not np.float32 else 0.0
    parts = [added([each], unit) for each in parameter_gradients(kind, "weight", x, above, actual.shape)]
    assert check(actual, ((each, False) for each in parts)).status == "holds"
    twice = scaled(parts[0], actual * np.float32(0.25))
    assert twice is not None
    assert float(twice.told.partition(" = ")[2]) == pytest.approx(0.25, rel=1e-3)
    assert dtype is not np.float32 or scaled(parts[0], actual) is None


@pytest.mark.parametrize(
    ("name", "told"),
    [("allreduce", "sum"), ("allreduce", "mean"), ("reducescatter", "sum"), ("allgather", "")],
)
def test_collectives_follow_from_the_pieces_of_all_ranks(name: str, told: str) -> None:
    pieces = [normal(8, 6, seed=rank) for rank in range(4)]
    total = np.sum(pieces, axis=0) / np.float32(4 if told == "mean" else 1)
    out = {"allreduce": total, "reducescatter": total[2:4], "allgather": np.concatenate(pieces)}[name]
    found = check(out, ((each, False) for each in results(name, pieces, out)))
    assert (found.status, found.told) == ("holds", told)
    out = out.copy()
    out[1] = pieces[0][1] * 5
    assert check(out, ((each, False) for each in results(name, pieces, out))).status != "holds"
