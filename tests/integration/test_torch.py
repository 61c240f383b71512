"""What the real torch, its programs and its process groups write."""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ingest
from ingest.page.library import Library, Moment
from ingest.questions.rollout.attention import AttentionForm
from ingest.reader.dump_store import open_store
from ingest.reader.tensor import Tensor
from tests import torch_oracle
from tests.cli import run_here
from tests.stores import ingest_and_open, ingest_directly
from tests.torch_ranks import record_box, record_shards
from tests.unit.ingest.page.conftest import links, screen

# What the real torch writes is read as it reads it back.


@pytest.fixture(scope="module")
def written(torch: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """What torch wrote, in a process of its own: it loads what nobody else should."""
    assert torch is not None
    directory = tmp_path_factory.mktemp("torch")
    command = [sys.executable, "-W", "ignore", torch_oracle.__file__, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory, json.loads(done.stdout.splitlines()[-1])


def digest(tensor: Tensor) -> tuple[list[int], str]:
    values = np.ascontiguousarray(tensor.read())
    return list(tensor.shape), hashlib.sha256(values.tobytes()).hexdigest()


def test_every_tensor_is_as_torch_reads_it(written: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """In the format of today (step 0), and in the one before torch 1.6 (step 1)."""
    directory, told = written
    ingest_directly(directory, tmp_path / "store", layout="odd{step}/{module}.pt")
    stored: dict[str, list[tuple[list[int], str]]] = {path: [] for path in told["files"]}
    for tensor in open_store(tmp_path / "store").tensors(rank=0, step=[0, 1]):
        stored[tensor.source].append(digest(tensor))
    expected = {
        path: sorted((tensor["shape"], tensor["sha256"]) for tensor in tensors)
        for path, tensors in told["files"].items()
    }
    assert {path: sorted(tensors) for path, tensors in stored.items()} == expected
    assert len(expected) > 30


def test_checkpoint_is_as_torch_reads_it(written: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    directory, told = written
    if told["checkpoint"] is None:
        pytest.skip(f"torch {told['version']} has no torch.distributed.checkpoint.save")
    ingest_directly(directory / "checkpoint", tmp_path / "store")
    stored = {tensor.op_name: digest(tensor) for tensor in open_store(tmp_path / "store").tensors(step=3)}
    assert stored == {
        name: (tensor["shape"], tensor["sha256"]) for name, tensor in told["checkpoint"].items()
    }


# Ranks that record into one directory: replicas, of which the one that drifts is named, and shards.


@pytest.fixture(scope="module")
def shards(torch: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001  (it must be there)
    directory = tmp_path_factory.mktemp("shards")
    record_shards(directory, 2)
    return directory


def test_shards_of_fsdp_are_recorded_as_each_rank_has_them(shards: Path, tmp_path: Path) -> None:
    """Parameters and reduced gradients bit for bit, their places, and where a bad record does harm first."""
    store = ingest_and_open(shards / "run-dump", tmp_path / "run.zarr")
    assert (store.ranks, store.steps) == ([0, 1], [0, 1])
    places = {rank: axes["dp_shard"] for rank, axes in store.coordinates().items()}
    assert {rank: (place.rank, place.size) for rank, place in places.items()} == {0: (0, 2), 1: (1, 2)}
    for rank in store.ranks:
        for step in store.steps:
            recorded = {
                tensor.op_name + (".grad" if tensor.op_type == "Gradient" else ""): tensor.read()
                for tensor in store.tensors(rank=rank, step=step)
                if tensor.op_type in ("Parameter", "Gradient") and "output.output" not in tensor.name
            }
            with np.load(shards / f"rank_{rank}_step_{step}.npz") as told:
                local = {name: told[name] for name in told.files if told[name].size}
            for name, values in local.items():
                np.testing.assert_array_equal(recorded[name], values, err_msg=f"{name} of rank {rank}")
    (weight,) = store.tensors("Parameter.1.weight.*", rank=0, step=0)
    assert weight.unsharded().shape == (7, 4)
    # `fully_shard` gives modules other classes.
    assert {tensor.op_type for tensor in store.tensors("Module.*")} == {
        *("Module.Root", "Module.Linear", "Module.GELU", "Module.Sequential")
    }
    origin = ingest.origin(store)
    assert (origin.op_type, origin.op_name, origin.rank, origin.step) == ("Module.Root", "0", 1, 1)
    audit = ingest.audit(store)
    proved = {share.kind: share.tensors for share in audit.coverage if share.is_proved}
    assert not audit.failures
    assert proved["linear"] == 2 * 2 * 3


def test_placements_of_dtensors_are_told(shards: Path, tmp_path: Path) -> None:
    """`layout` takes from the dump what is cut, replicated or not yet added up, and joins pieces by it."""
    store = ingest_and_open(shards / "tensor-parallel", tmp_path / "run.zarr")
    placed = {kind.name: (kind.placement, kind.why) for kind in ingest.layout(store).kinds}
    expected = {
        "Parameter.0.weight.output.0": "tp: shard 0",
        "Parameter.0.bias.output.0": "tp: shard 0",
        "Parameter.2.weight.output.0": "tp: shard 1",
        "Parameter.2.bias.output.0": "tp: replicated",
        "Gradient.2.weight.output.0": "tp: shard 1",
        "Module.Linear.0.output.0": "tp: shard 1",
        "Module.ReLU.1.output.0": "tp: shard 1",
        "Module.Linear.2.output.0": "tp: partial sum",
    }
    assert {name: placed[name] for name in expected} == {
        name: (how, "told") for name, how in expected.items()
    }
    (piece,) = store.tensors("Module.Linear.2.output.0", rank=1)
    assert piece.attributes["tensor"] == {
        "placements": ["Partial(sum)"],
        "global_shape": [3, 5],
        "mesh_shape": [2],
        "mesh_dim_names": ["tp"],
        "mesh_coordinate": [1],
    }
    pieces = [store.tensors(piece.name, rank=rank)[0].read() for rank in store.ranks]
    np.testing.assert_array_equal(piece.unsharded().read(), pieces[0].astype(float) + pieces[1])


def test_all_ranks_of_a_black_box_save_the_steps_around_what_one_of_them_saw(
    torch: Any, tmp_path: Path
) -> None:
    del torch
    record_box(tmp_path, 2)
    store = ingest_and_open(tmp_path / "run-dump", tmp_path / "run.zarr")
    with_tensors = {
        rank: [step for step in store.steps if store.tensors("Module.*", rank=rank, step=step)[0].is_dumped]
        for rank in store.ranks
    }
    assert with_tensors == {0: [12, 13, 14, 15, 16, 17], 1: [12, 13, 14, 15, 16, 17]}
    assert store.steps == list(range(24))
    origin = ingest.origin(store)
    assert (origin.op_type, origin.rank, origin.step) == ("Module.Root", 1, 15)


# `compare --by token`: healthy pairs give no alarm, each mistake is told with the module that made it.


PAGE = Path(__file__).parents[2] / "docs" / "rollout.md"


@pytest.fixture(scope="module")
def programs(torch: Any) -> ModuleType:
    """The programs, which import torch."""
    assert torch is not None
    from tests import token_programs

    return token_programs


def _left_against_chunks(p: ModuleType) -> dict[str, Any]:
    own = p.prompts()
    return {"batch": p.padded(own, left=True), "serve": p.served(own, chunk=5)}


def _packed_against_decoding(p: ModuleType) -> dict[str, Any]:
    own = p.prompts()
    return {"batch": p.packed(own), "serve": p.served(own, chunk=5, decode=4)}


def _another_order(p: ModuleType) -> dict[str, Any]:
    one, two, three, _, five = p.prompts(5)
    return {"batch": p.padded([one, two, three]), "serve": p.served([three, five, one, two, one], decode=3)}


def _packed_against_padded_trainer(p: ModuleType) -> dict[str, Any]:
    return {"batch": p.packed(p.prompts()), "serve": p.served(p.prompts()[:1])}


def _types(a: str, b: str) -> Callable[[ModuleType], dict[str, Any]]:
    def case(p: ModuleType) -> dict[str, Any]:
        return {
            "dtypes": (getattr(p.torch, a), getattr(p.torch, b)),
            "serve": p.served(p.prompts(), decode=3),
        }

    return case


def _both(**settings: Any) -> Callable[[ModuleType], dict[str, Any]]:
    return lambda p: {"trainer": p.Model(**settings), "serve": p.served(p.prompts(), decode=2)}


def _narrow(**settings: Any) -> Callable[[ModuleType], dict[str, Any]]:
    def case(p: ModuleType) -> dict[str, Any]:
        own = p.prompts(longer=60)
        both = p.torch.bfloat16, p.torch.bfloat16
        return {"engine": p.Model(**settings), "dtypes": both, "batch": p.padded(own), "serve": p.served(own)}

    return case


HARMLESS: dict[str, Callable[[ModuleType], dict[str, Any]]] = {
    "padded against prompts": lambda _: {},
    "left padding against chunks": _left_against_chunks,
    "packed against decoding": _packed_against_decoding,
    "another order, more and duplicate requests": _another_order,
    "one of several sequences": _packed_against_padded_trainer,
    "bfloat16": _types("bfloat16", "bfloat16"),
    "longer, in bfloat16": _narrow(eager=True),
    "float32 against bfloat16": _types("float32", "bfloat16"),
    "float16 against float32": _types("float16", "float32"),
    "eager against sdpa": lambda p: {"engine": p.Model(eager=True)},
    "a window on both": _both(window=6),
    "interleaved rotation": _both(interleaved=True),
    "another base": _both(base=500000.0),
    "tied embedding": lambda p: {"trainer": p.Model(tied=True), "engine": p.Model()},
    "experts": _both(experts=4),
    "positions that begin at one": lambda p: {"engine": p.Model(shift=1)},
    "two ranks against one": lambda p: {"engine": p.Model(ranks=2), "serve": p.served(p.prompts(), chunk=6)},
}


def _with_campaigns(sampled: Collection[str], names: Iterable[str]) -> list[Any]:
    """Return all names, of which only some are run outside of campaigns."""
    return [pytest.param(name, marks=[] if name in sampled else pytest.mark.campaign) for name in names]


#: One of each way in which sides differ that are both right.
HARMLESS_SAMPLE = (
    "left padding against chunks",
    "packed against decoding",
    "another order, more and duplicate requests",
    "longer, in bfloat16",
    "float32 against bfloat16",
    "experts",
    "two ranks against one",
)


@pytest.mark.parametrize("name", _with_campaigns(HARMLESS_SAMPLE, HARMLESS))
def test_healthy_pairs_give_no_alarm(programs: ModuleType, tmp_path: Path, name: str) -> None:
    """Another batch, order of sums or type does not count as a divergence, and every token is found."""
    case = HARMLESS[name](programs)
    a, b = programs.sides(tmp_path, **case)
    answer = ingest.compare_tokens(str(a), str(b))
    assert answer.divergence is None, answer.divergence.text
    assert not answer.is_alarm
    assert not answer.open_tokens
    assert answer.matched == answer.tokens - (23 if "more" in name else 0)


def _engine(**settings: Any) -> Callable[[ModuleType], dict[str, Any]]:
    return lambda p: {"engine": p.Model(**settings)}


def _against(trainer: dict[str, Any], engine: dict[str, Any]) -> Callable[[ModuleType], dict[str, Any]]:
    return lambda p: {"trainer": p.Model(**trainer), "engine": p.Model(**engine)}


def _cache(dtype: str, **more: Any) -> Callable[[ModuleType], dict[str, Any]]:
    return lambda p: {"engine": p.Model(cache=getattr(p.torch, dtype), **more)}


def _untied(engine: Any) -> None:
    weight = engine.lm_head.weight
    weight.data = weight.data.flip(0, 1) * 0.9


def _other_weights(name: str) -> Callable[[Any], None]:
    def spoil(engine: Any) -> None:
        weight = engine.get_parameter(name)
        weight.data = weight.data * 1.1

    return spoil


def _spoilt(spoil: Callable[[Any], None], **trainer: Any) -> Callable[[ModuleType], dict[str, Any]]:
    return lambda p: {"trainer": p.Model(**trainer), "engine": p.Model(), "spoil": spoil}


LAYER = "model.layers.{}."
#: By name the pair, the module of the trainer that has to be named, and what has to be said of it.
MISTAKES: dict[str, tuple[Callable[[ModuleType], dict[str, Any]], str, str]] = {
    "base of the rotation": (_engine(base=500000.0), LAYER.format(0) + "self_attn.o_proj", "base 500000"),
    "base of the rotation in bfloat16": (
        _narrow(base=500000.0),
        LAYER.format(0) + "self_attn.o_proj",
        "base 500000, and not",
    ),
    "scaled positions": (_engine(factor=4.0), LAYER.format(0) + "self_attn.o_proj", "divided by 4"),
    "neighbours paired": (_engine(interleaved=True), LAYER.format(0) + "self_attn.o_proj", "neighbours"),
    "base in one layer": (
        _engine(base=1e6, wrong_layer=2),
        LAYER.format(2) + "self_attn.o_proj",
        "base 1e+06",
    ),
    "base on two ranks": (
        _engine(base=500000.0, wrong_layer=1, ranks=2),
        LAYER.format(1) + "self_attn.o_proj",
        "base 500000",
    ),
    "eps on two ranks": (
        _engine(eps=1e-3, wrong_layer=1, ranks=2),
        LAYER.format(1) + "input_layernorm",
        "eps = 0.001",
    ),
    "temperature": (_engine(temperature=0.7), "the whole model", "1.42857 times lm_head"),
    "token shift": (
        lambda p: {"serve": p.served([each[1:] for each in p.prompts()])},
        "model.embed_tokens",
        "begin 1 token later",
    ),
    "packing that is not cut": (
        lambda p: {"serve": p.mixed(p.prompts())},
        LAYER.format(0) + "self_attn.o_proj",
        "of other sequences",
    ),
    "positions of decoding off by one": (
        lambda p: {"serve": p.served(p.prompts(), decode=4, late=1)},
        LAYER.format(0) + "self_attn.o_proj",
        " follows",
    ),
    "eps": (_engine(eps=1e-6), LAYER.format(0) + "input_layernorm", "eps = 1e-06"),
    "eps in one layer": (
        _engine(eps=1e-3, wrong_layer=1),
        LAYER.format(1) + "input_layernorm",
        "eps = 0.001",
    ),
    "a mask that shows one token more": (_engine(ahead=1), LAYER.format(0) + "self_attn.o_proj", "off by +1"),
    "a window that is one too small": (
        _against({"window": 8}, {"window": 7}),
        LAYER.format(0) + "self_attn.o_proj",
        "window of 7",
    ),
    "a window in one layer": (
        _engine(window=8, wrong_layer=1),
        LAYER.format(1) + "self_attn.o_proj",
        "window of 8",
    ),
    "no window": (_against({"window": 8}, {}), LAYER.format(0) + "self_attn.o_proj", ""),
    "scale of scores": (_engine(scale=1.0), LAYER.format(0) + "self_attn.o_proj", "scores times 1"),
    "cache in float8": (_cache("float8_e4m3fn"), LAYER.format(0) + "self_attn.o_proj", "float8_e4m3fn"),
    "cache in bfloat16, one layer": (
        _cache("bfloat16", wrong_layer=1),
        LAYER.format(1) + "self_attn.o_proj",
        "bfloat16",
    ),
    "no final norm": (_engine(final_norm=False), "lm_head", ""),
    "a residual that is halved": (
        _engine(residual=0.5, wrong_layer=1),
        LAYER.format(1) + "post_attention_layernorm",
        "",
    ),
    "another activation": (_engine(act="gelu", wrong_layer=2), LAYER.format(2) + "mlp.down_proj", ""),
    "an embedding that is not tied": (_spoilt(_untied, tied=True), "lm_head", "other weights"),
    "weights of one projection": (
        _spoilt(_other_weights("model.layers.1.mlp.down_proj.weight")),
        LAYER.format(1) + "mlp.down_proj",
        "",
    ),
    "weights of a norm": (
        _spoilt(_other_weights("model.layers.2.input_layernorm.weight")),
        LAYER.format(2) + "input_layernorm",
        "",
    ),
}


#: One mistake of each module, in one layer and on two ranks where that makes a difference.
MISTAKES_SAMPLE = (
    "base of the rotation in bfloat16",
    "base on two ranks",
    "temperature",
    "token shift",
    "packing that is not cut",
    "eps in one layer",
    "a mask that shows one token more",
    "a window in one layer",
    "cache in float8",
    "a residual that is halved",
    "an embedding that is not tied",
    "weights of one projection",
)


@pytest.mark.parametrize("name", _with_campaigns(MISTAKES_SAMPLE, MISTAKES))
def test_mistakes_are_told_with_their_module(programs: ModuleType, tmp_path: Path, name: str) -> None:
    """The first module that did something else is named, on the side that did it."""
    case, module, words = MISTAKES[name]
    a, b = programs.sides(tmp_path, **case(programs))
    answer = ingest.compare_tokens(str(a), str(b))
    assert answer.is_alarm
    assert answer.divergence is not None
    assert answer.divergence.module == module
    assert answer.divergence.side == "rollout"
    assert words in answer.divergence.text
    assert answer.divergence.times > 1 or "bfloat16" in name
    assert bool(answer.weights) == ("weights of" in name)


def test_the_command_prints_text_and_json(programs: ModuleType, tmp_path: Path) -> None:
    """It exits with 5 where something diverges, and refuses options that it does not take."""
    a, b = programs.sides(tmp_path, engine=programs.Model(eps=1e-3, wrong_layer=1))
    shown = run_here("compare", str(a), str(b), "--by", "token", "--top", "3", code=5)
    assert "42 of 42 tokens matched" in shown.stdout
    assert "first divergence: model.layers.1.input_layernorm" in shown.stdout
    told = json.loads(run_here("compare", str(a), str(b), "--by", "token", "--json", code=5).stdout)
    assert told["divergence"]["at"] == "output"
    assert told["divergence"]["tokens"][0]["position"] == 0
    assert {each["verdict"] for each in told["modules"]} <= {"equal", "explained", "diverges", "open"}
    for wrong in (("--by", "value"), ("--by", "token", "--over-steps")):
        run_here("compare", str(a), str(b), *wrong, code=2)


def test_the_picture_of_layers_leads_to_elements_of_both_sides(programs: ModuleType, tmp_path: Path) -> None:
    """The file and the page show the same, and the page leads to the tensors in both stores."""
    a, b = programs.sides(tmp_path, engine=programs.Model(eps=1e-3, wrong_layer=1))
    run_here("compare", str(a), str(b), "--by", "token", "--html", str(tmp_path / "t.html"), code=5)
    stores = [str(tmp_path / "runs" / f"{dump.name}.zarr") for dump in (a, b)]
    for dump, store in zip((a, b), stores, strict=True):
        ingest.ingest_dump(dump, store)
    library = Library(str(tmp_path / "runs"))
    moment = Moment.of(ingest.open_store(stores[0]))
    shown = screen(moment, f"tokens?with={Path(stores[1]).name}", library, Path(stores[0]).name)
    for text in ((tmp_path / "t.html").read_text("utf-8"), shown.text):
        rows = re.findall(r'href="#(layer-\d+)"', text)
        assert len(rows) > 2
        assert all(f'id="{each}"' in text for each in rows)
        opened = re.findall(r"<details open><summary>([^:]*)", text)
        assert opened == ["model.layers.1"]
    worst = next(each for each in ingest.compare_tokens(*stores).modules if each.verdict == "diverges")
    of_trainer = worst.tensors[0]
    (tensor,) = ingest.open_store(stores[0]).tensors(of_trainer.name, rank=0, step=of_trainer.step)
    assert np.float32(worst.elements[0].trainer) in tensor.read()
    assert sum("tensor?" in each for each in links(shown)) == 2 * len(ingest.compare_tokens(*stores).modules)


def test_tokens_that_experts_of_one_side_drop_are_named(programs: ModuleType, tmp_path: Path) -> None:
    """The mistake is in no module that could be recomputed: the experts did not get the tokens."""
    trainer, engine = programs.Model(experts=4), programs.Model(experts=4, capacity=6)
    answer = ingest.compare_tokens(*map(str, programs.sides(tmp_path, trainer=trainer, engine=engine)))
    of_first, *_ = answer.routing
    assert answer.is_alarm
    assert of_first.dropped > 0
    assert of_first.other == 0
    assert {each.side for each in of_first.first_dropped} == {"rollout"}
    assert all(each.trainer_dropped == 0 and each.both == each.trainer for each in of_first.experts)
    assert sum(each.rollout_dropped for each in of_first.experts) == of_first.dropped


def test_a_side_without_token_ids_is_refused(programs: ModuleType, tmp_path: Path) -> None:
    """What a dump lacks is named."""
    a, _ = programs.sides(tmp_path)
    b = programs.record(
        programs.torch.nn.Linear(4, 4), tmp_path / "other", lambda p: p(programs.torch.ones(2, 4))
    )
    assert "reads token ids" in run_here("compare", str(a), str(b), "--by", "token", code=2).stderr


def test_rows_that_cannot_be_grouped_by_heads_are_no_attention() -> None:
    """Three query heads cannot share two key heads, whatever else the widths allow."""
    q, k, v = (np.ones((5, width), np.float32) for width in (12, 8, 8))
    assert AttentionForm(4).applied((q, k, v)) is None
    assert AttentionForm(4).applied((np.ones((5, 16), np.float32), k, v)) is not None


# `compare-weights` of programs with other names and cuts: what is healthy is equal, each mistake is told.


Recorded = Callable[..., Path]
Compared = Callable[..., ingest.ArrivedWeights]
Mistake = Callable[[Any, dict[str, Any]], object]

QKV, OUT, SQUARE = (f"model.layers.{{}}.self_attn.{name}.weight" for name in ("qkv_proj", "o_proj", "r_proj"))
ROUTED, BACK = (f"model.layers.{{}}.mlp.experts.{name}_weight" for name in ("w13", "w2"))


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
