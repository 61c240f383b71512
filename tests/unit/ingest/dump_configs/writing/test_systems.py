"""Configurations that are written for each system."""

import ast
import json
import re
import shlex
from dataclasses import replace

import pytest
import yaml

from ingest.dump_configs.model import RequestedOperator, WrittenConfig
from ingest.dump_configs.writing import WRITERS, system_of, write_config
from tests.guide_configs import CALL, LAYER, REQUEST
from workers.errors import UsageError


@pytest.mark.parametrize(
    ("layouts", "source", "system"),
    [
        ("mindspore", "rank_0/Net/0/1/x.npy", "mindspore"),
        ("cann", "20240801041010/0/x", "acl"),
        ("cann", "worldsize2_global_rank1/20240801041010/0/x", "torchair"),
        ("msprobe+cann", "step0/rank0/x", "msprobe"),
        ("sglang", "step=0", "sglang"),
        ("transformer_engine_statistics", "nvdlfw_inspect_globalrank-0.log", "te"),
    ],
)
def test_the_system_follows_from_the_layout(layouts: str, source: str, system: str) -> None:
    assert system_of(layouts, [source]) == system
    assert system in WRITERS


def test_a_layout_without_a_writer_is_named() -> None:
    with pytest.raises(UsageError, match="vllm") as error:
        system_of("vllm", [])
    assert "mindspore" in str(error.value.hint)
    with pytest.raises(UsageError, match="no system 'caffe'"):
        write_config("caffe", REQUEST)


def test_acl_is_told_layers_by_model() -> None:
    config = write_config("acl", REQUEST)
    (model,) = json.loads(config.text)["dump"]["dump_list"]
    assert model == {"model_name": "Net", "layer": ["Default/net/Log-op0", "Default_net_Cast-op11"]}
    assert json.loads(config.text)["dump"]["dump_step"] == "8-9"
    assert any("ge_proto" in note for note in config.notes)


@pytest.mark.parametrize("system", ["torchair", "tensorflow"])
def test_lines_are_python(system: str) -> None:
    text = write_config(system, REQUEST).text
    assert len(ast.parse(text).body) == 6
    assert "Default/net/Log-op0 Default_net_Cast-op11" in text


def common(config: WrittenConfig) -> dict[str, object]:
    content: dict[str, object] = json.loads(config.text)["common_dump_settings"]
    return content


def test_mindspore_is_told_names_and_expressions() -> None:
    config = write_config("mindspore", REQUEST)
    settings = common(config)
    assert settings["kernels"] == ["Default/net/Log-op0", "name-regex(Default.net.Cast-op11)"]
    assert (settings["dump_mode"], settings["iteration"], settings["support_device"]) == (1, "8-9", [1])
    assert json.loads(config.text)["e2e_dump_settings"] == {"enable": True, "trans_flag": True}
    assert (config.ranks, config.notes) == ((1,), ())


def test_mindspore_on_cpu_dumps_every_rank_and_says_so() -> None:
    config = write_config("mindspore", replace(REQUEST, device="CPU"))
    assert config.ranks == (0, 1)
    assert config.notes == ("On CPU every rank dumps: MindSpore ignores support_device there.",)


def test_old_mindspore_dumps_a_type_if_it_cannot_be_told_the_name() -> None:
    config = write_config("mindspore", replace(REQUEST, version="2.0.0"))
    assert common(config)["kernels"] == ["Default/net/Log-op0", "Cast"]
    assert "no regular expressions" in config.notes[0]


def test_former_settings_of_mindspore_are_kept_and_sampling_is_not() -> None:
    former = {
        "common_dump_settings": {"net_name": "Big Net", "initial_iteration": 10, "saved_data": "statistic"},
        "e2e_dump_settings": {"enable": False, "trans_flag": False, "sample_mode": 1, "sample_num": 100},
    }
    config = write_config("mindspore", replace(REQUEST, former=former, job_ranks=tuple(range(16))))
    settings = common(config)
    assert (settings["net_name"], settings["initial_iteration"], settings["saved_data"]) == (
        "Big_Net",
        10,
        "tensor",
    )
    assert json.loads(config.text)["e2e_dump_settings"] == {"enable": False, "trans_flag": False}
    assert "modulo 8" in config.notes[0]


def test_a_directory_that_mindspore_would_refuse_is_refused_here() -> None:
    with pytest.raises(UsageError, match="refuses this directory") as error:
        write_config("mindspore", replace(REQUEST, directory="/data/my.dump"))
    assert error.value.hint


@pytest.mark.parametrize(("operators", "level"), [((CALL,), "L1"), ((LAYER,), "L0"), ((CALL, LAYER), "mix")])
def test_msprobe_is_told_calls(operators: tuple[RequestedOperator, ...], level: str) -> None:
    content = json.loads(write_config("msprobe", replace(REQUEST, operators=operators)).text)
    assert content["tensor"]["list"] == [operator.op_name for operator in operators]
    assert (content["task"], content["level"], content["step"], content["rank"]) == (
        "tensor",
        level,
        [8, 9],
        [1],
    )
    assert content["risk_level"] == "ALL"


def test_msprobe_cannot_be_told_what_it_saves_in_any_case() -> None:
    saved = RequestedOperator("", "", "debug", "activations.0.debug")
    with pytest.raises(UsageError, match=r"activations\.0\.debug"):
        write_config("msprobe", replace(REQUEST, operators=(saved,)))


def test_variables_of_sglang_are_shell_and_their_filter_is_python() -> None:
    text = write_config("sglang", replace(REQUEST, operators=(replace(LAYER, op_name="layers.1.attn"),))).text
    values = dict(shlex.split(line)[1].split("=", 1) for line in text.splitlines())
    assert (values["DUMPER_DIR"], values["DUMPER_EXP_NAME"]) == ("/data", "dump_next")
    expression = compile(values["DUMPER_FILTER"], "filter", "eval")
    chosen = [
        name
        for name in (
            *("non_intrusive__layers.1.attn.output", "non_intrusive__layers.1.attn.inputs.x"),
            *("non_intrusive__layers.1.attn.qkv.output", "non_intrusive__layers.11.attn.output"),
            *("grad__non_intrusive__layers.1.attn.output.0", "param__layers.1.attn.weight", "layers.1.attn"),
        )
        if eval(expression, {"name": name, "search": re.search})  # noqa: S307  (as SGLang does)
    ]
    assert chosen == [
        *("non_intrusive__layers.1.attn.output", "non_intrusive__layers.1.attn.inputs.x"),
        *("grad__non_intrusive__layers.1.attn.output.0", "layers.1.attn"),
    ]


def test_neither_tags_nor_the_outermost_module_are_in_the_names_that_sglang_filters_by() -> None:
    operators = (replace(LAYER, op_name="q.layer_id=3"),)
    text = write_config("sglang", replace(REQUEST, operators=operators)).text
    assert "(?:q)" in text
    assert "__(?:inputs|output)" not in text
    text = write_config("sglang", replace(REQUEST, operators=(replace(LAYER, op_name="model"),))).text
    assert "__(?:inputs|output)" in text


def test_transformer_engine_is_told_layers_and_steps() -> None:
    request = replace(REQUEST, operators=(replace(LAYER, op_name="decoder_0"),), steps=(3, 8, 9))
    content = yaml.safe_load(write_config("te", request).text)["next_dump"]
    assert content["layers"]["layer_name_regex_pattern"] == "(?:decoder.0)"
    tensors = content["transformer_engine"]["DumpTensors"]["tensors_struct"]
    assert {tuple(map(tuple, tensor["start_end_list"])) for tensor in tensors} == {((3, 3), (8, 9))}
