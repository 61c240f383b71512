"""`compare --by token`: healthy pairs give no alarm, each mistake is told with the module that made it."""

import json
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ingest
from ingest.questions.rollout.attention import AttentionForm
from tests.in_process import run_here

Sides = Callable[..., tuple[Path, Path]]
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
