"""`compare-weights` of programs with other names and cuts: what is healthy is equal, each mistake is told."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ingest
from tests.in_process import run_here
from tests.pipeline import ingest_directly

Recorded = Callable[..., Path]
Compared = Callable[..., ingest.ArrivedWeights]
Mistake = Callable[[Any, dict[str, Any]], object]

QKV, OUT, SQUARE = (f"model.layers.{{}}.self_attn.{name}.weight" for name in ("qkv_proj", "o_proj", "r_proj"))
ROUTED, BACK = (f"model.layers.{{}}.mlp.experts.{name}_weight" for name in ("w13", "w2"))
PAGE = Path(__file__).parents[2] / "docs" / "rollout.md"


@pytest.fixture(scope="module")
def rollouts(torch: Any) -> ModuleType:
    """The programs, which import torch."""
    assert torch is not None
    from tests import rollouts

    return rollouts


@pytest.fixture(scope="module")
def steps(rollouts: ModuleType) -> tuple[dict[str, Any], dict[str, Any]]:
    """The weights of two steps."""
    before = rollouts.moe_weights()
    return before, rollouts.updated(before)


@pytest.fixture(scope="module")
def trainer(rollouts: ModuleType, steps: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trainer with steps 7 and 8."""
    root: Path = tmp_path_factory.mktemp("trainer") / "dump"
    for step, weights in zip((7, 8), steps, strict=True):
        rollouts.record_weights(root, step, weights)
    return root


@pytest.fixture
def recorded(rollouts: ModuleType, tmp_path: Path) -> Recorded:
    """Records weights as step 8, of one rank or several."""
    return lambda *by_rank, name="rollout": rollouts.record_weights(tmp_path / name, 8, *by_rank)


@pytest.fixture
def compared(trainer: Path, recorded: Recorded) -> Compared:
    """Compares what an engine holds with the trainer."""

    def compare(*by_rank: dict[str, Any], **name: str) -> ingest.ArrivedWeights:
        return ingest.compare_weights(str(trainer), str(recorded(*by_rank, **name)))

    return compare


def of_name(answer: ingest.ArrivedWeights, name: str) -> Any:
    """Return a tensor of an answer."""
    return next(each for each in answer.tensors if each.name == name)


def test_weights_that_were_fused_stacked_and_cast_are_equal(
    rollouts: ModuleType, steps: Any, compared: Compared
) -> None:
    answer = compared(rollouts.engine_weights(steps[1]))
    assert not answer.is_alarm
    assert answer.counts["equal"] == len(answer.tensors) == 30
    assert not answer.unused
    attention = "model.layers.1.self_attn"
    fused = " + ".join(f"{attention}.{name}_proj.weight" for name in "qkv")
    assert of_name(answer, QKV.format(1)).text == f"{fused}, rounded to bfloat16"


@pytest.mark.parametrize("ranks", [2, 4])
def test_shards_on_either_side_are_equal(
    rollouts: ModuleType, steps: Any, compared: Compared, recorded: Recorded, ranks: int
) -> None:
    shards = [rollouts.engine_weights(steps[1], rank=rank, ranks=ranks) for rank in range(ranks)]
    assert compared(*shards).counts["equal"] == 30 * ranks
    sharded = recorded(*shards, name="sharded")
    whole = recorded(rollouts.apart(rollouts.engine_weights(steps[1])), name="whole")
    assert ingest.compare_weights(str(sharded), str(whole)).counts["equal"] == len(
        ingest.compare_weights(str(whole), str(whole)).tensors
    )


def test_matrices_that_are_all_transposed_are_equal(
    rollouts: ModuleType, steps: Any, compared: Compared
) -> None:
    engine = {
        name: each.T if each.ndim == 2 else each for name, each in rollouts.engine_weights(steps[1]).items()
    }
    answer = compared(engine)
    assert answer.counts["equal"] == 30
    assert of_name(answer, QKV.format(0)).is_transposed


def test_padding_of_the_vocabulary_and_equal_types_are_equal(
    torch: Any, rollouts: ModuleType, steps: Any, compared: Compared
) -> None:
    padded = dict(steps[1])
    padded["lm_head.weight"] = torch.cat([padded["lm_head.weight"], torch.zeros(8, rollouts.HIDDEN)])
    answer = compared(padded)
    assert answer.counts["equal"] == len(answer.tensors) == len(padded)
    assert "zeros" not in answer.tensors[-1].text


def _swap_experts(_: Any, engine: dict[str, Any]) -> None:
    engine[ROUTED.format(2)] = engine[ROUTED.format(2)][[0, 2, 1, 3]]


def _interleave(torch: Any, engine: dict[str, Any], layer: int = 1) -> None:
    parts = [part.chunk(2) for part in engine[QKV.format(layer)].split([64, 32, 32])]
    engine[QKV.format(layer)] = torch.cat([part[half] for half in range(2) for part in parts])


def _truncate(torch: Any, engine: dict[str, Any]) -> None:
    bits = engine["exact"][OUT.format(0)].numpy().view(np.uint32) & np.uint32(0xFFFF0000)
    engine[OUT.format(0)] = torch.from_numpy(bits.view(np.float32)).to(torch.bfloat16)


def _quantise(torch: Any, engine: dict[str, Any], factor: float = 1.0) -> None:
    exact = engine["exact"][OUT.format(1)]
    scale = exact.abs().max() / 448
    engine[OUT.format(1)] = (exact / scale).to(torch.float8_e4m3fn)
    engine[f"{OUT.format(1)}_scale"] = (scale * factor).reshape(1)


def _set(name: str, changed: Callable[[Any], Any]) -> Mistake:
    return lambda _, engine: engine.update({name: changed(engine[name])})


_MISTAKES: dict[str, tuple[Mistake, str, str, str]] = {
    "stale": (
        lambda _, engine: engine.update({QKV.format(1): engine["stale"][QKV.format(1)]}),
        QKV.format(1),
        "stale",
        "step 7 of ",
    ),
    "stale expert": (
        lambda _, engine: engine[ROUTED.format(1)][2].copy_(engine["stale"][ROUTED.format(1)][2]),
        ROUTED.format(1),
        "stale",
        "step 7 of ",
    ),
    "experts swapped": (_swap_experts, ROUTED.format(2), "misplaced", "experts 2, where experts 1 belongs"),
    "interleaved once": (_interleave, QKV.format(1), "misplaced", "not put together as model.layers.0"),
    "transposed once": (_set(SQUARE.format(0), lambda w: w.T), SQUARE.format(0), "misplaced", "transposed"),
    "truncated": (_truncate, OUT.format(0), "different", "rounded toward zero to bfloat16"),
    "scaled": (_set(OUT.format(1), lambda w: w * 1.5), OUT.format(1), "different", "1.5 times the trainer's"),
    "wrong scale": (
        lambda torch, engine: _quantise(torch, engine, 2.0),
        OUT.format(1),
        "different",
        "times the trainer's",
    ),
    "never loaded": (_set(OUT.format(1), lambda w: w * 0), OUT.format(1), "different", "all 0"),
    "other values": (
        _set(ROUTED.format(0), lambda w: w.flip(2)),
        ROUTED.format(0),
        "different",
        "not put together as model.layers.1.mlp.experts.w13_weight",
    ),
}


@pytest.mark.parametrize("mistake", _MISTAKES)
def test_a_mistake_is_told_of_its_tensor_alone(
    torch: Any, rollouts: ModuleType, steps: Any, compared: Compared, mistake: str
) -> None:
    engine = rollouts.engine_weights(steps[1])
    make, name, verdict, words = _MISTAKES[mistake]
    known = {"exact": steps[1], "stale": rollouts.engine_weights(steps[0])}
    changed = engine | known
    make(torch, changed)
    answer = compared({each: changed[each] for each in changed if each not in known})
    assert answer.is_alarm
    assert [each.name for each in answer.tensors if each.verdict != "equal"] == [name]
    assert of_name(answer, name).verdict == verdict
    assert words in of_name(answer, name).text


def test_a_shard_of_another_rank_is_misplaced(rollouts: ModuleType, steps: Any, compared: Compared) -> None:
    shards = [rollouts.engine_weights(steps[1], rank=rank, ranks=2) for rank in range(2)]
    shards[1][OUT.format(1)] = shards[0][OUT.format(1)]
    answer = compared(*shards)
    (wrong,) = (each for each in answer.tensors if each.verdict != "equal")
    assert (wrong.rank, wrong.name, wrong.verdict) == (1, OUT.format(1), "misplaced")
    assert wrong.text.endswith("columns 0:32: shard 0, where other tensors of the rank hold shard 1")


def test_layers_that_are_swapped_are_misplaced(rollouts: ModuleType, steps: Any, compared: Compared) -> None:
    engine = rollouts.engine_weights(steps[1])
    engine[OUT.format(1)], engine[OUT.format(2)] = engine[OUT.format(2)], engine[OUT.format(1)]
    answer = compared(engine)
    assert [each.name for each in answer.tensors if each.verdict == "misplaced"] == [
        OUT.format(1),
        OUT.format(2),
    ]


def test_a_quantised_weight_is_equal_within_its_type(
    torch: Any, rollouts: ModuleType, steps: Any, compared: Compared
) -> None:
    engine = rollouts.engine_weights(steps[1]) | {"exact": steps[1]}
    _quantise(torch, engine)
    del engine["exact"]
    answer = compared(engine)
    assert not answer.is_alarm
    assert "quantised to float8_e4m3fn with its scale" in of_name(answer, OUT.format(1)).text
    assert "the scale of" in of_name(answer, f"{OUT.format(1)}_scale").text


def test_what_values_do_not_tell_is_open(
    torch: Any, rollouts: ModuleType, steps: Any, compared: Compared
) -> None:
    engine = rollouts.engine_weights(steps[1])
    for layer in range(rollouts.LAYERS):
        _interleave(torch, engine, layer)
        engine[SQUARE.format(layer)] = engine[SQUARE.format(layer)].T
    for name in (ROUTED.format(2), BACK.format(2)):  # with a map of experts this is right
        engine[name] = engine[name][[0, 2, 1, 3]]
    engine["inv_freq"] = torch.arange(1, 9) / 7
    del engine["lm_head.weight"]
    answer = compared(engine)
    assert not answer.is_alarm
    named = [name.format(layer) for layer in range(3) for name in (QKV, SQUARE)]
    assert {each.name for each in answer.tensors if each.verdict == "open"} == {
        *named,
        ROUTED.format(2),
        BACK.format(2),
        "inv_freq",
    }
    assert answer.unused == ("lm_head.weight",)


def test_all_weights_of_a_step_before_are_stale_and_noise_is_measured(
    torch: Any, rollouts: ModuleType, steps: Any, compared: Compared
) -> None:
    answer = compared(rollouts.engine_weights(steps[0]))
    norms = 2 * rollouts.LAYERS + 1  # they are ones in every step
    assert answer.counts["stale"] == 30 - norms
    noisy = {name: each * (1 + 0.05 * torch.randn_like(each)) for name, each in steps[1].items()}
    answer = compared(rollouts.engine_weights(noisy), name="noisy")
    assert answer.counts["different"] >= 30 - norms
    (q, k, v) = of_name(answer, QKV.format(0)).stretches
    assert [(each.of[-13:], each.begin, each.end) for each in (q, k, v)] == [
        ("q_proj.weight", 0, 64),
        ("k_proj.weight", 64, 96),
        ("v_proj.weight", 96, 128),
    ]
    assert all(0.03 < each.relative < 0.07 for each in (q, k, v))


def test_the_command_says_it_of_stores_and_exits_with_5(
    rollouts: ModuleType, steps: Any, trainer: Path, recorded: Recorded
) -> None:
    engine = rollouts.engine_weights(steps[1])
    healthy = recorded(engine, name="healthy")
    _swap_experts(None, engine)
    engine[QKV.format(1)] = rollouts.engine_weights(steps[0])[QKV.format(1)]
    stores = healthy.with_name("train.zarr"), healthy.with_name("rollout.zarr")
    ingest_directly(trainer, stores[0])
    ingest_directly(recorded(engine), stores[1])
    said = run_here("compare-weights", *stores, "--limit", "2", code=5)
    page = " ".join(PAGE.read_text().split())
    assert [line for line in said.stdout.splitlines() if " ".join(line.split()) not in page] == []
    told = json.loads(run_here("compare-weights", *stores, "--json", code=5).stdout)
    assert told["counts"] == {"misplaced": 1, "different": 0, "stale": 1, "open": 0, "equal": 28}
    run_here("compare-weights", trainer, healthy)
    assert "STORE@RANK,STEP" in run_here("compare-weights", f"{trainer}@x", healthy, code=2).stderr


def test_what_lies_between_elements_that_differ_is_not_a_shard(
    torch: Any, rollouts: ModuleType, tmp_path: Path
) -> None:
    weights = {f"layers.{layer}.bias": torch.randn(16) for layer in range(5)}
    changed = {name: each.clone() for name, each in weights.items()}
    for layer, element in enumerate([9, 9, 9, 9, 0]):
        changed[f"layers.{layer}.bias"][element] += 1e-3
    sides = [
        rollouts.record_weights(tmp_path / name, 8, side)
        for name, side in (("trainer", weights), ("rollout", changed))
    ]
    answer = ingest.compare_weights(*map(str, sides))
    assert {each.verdict for each in answer.tensors} == {"different"}
