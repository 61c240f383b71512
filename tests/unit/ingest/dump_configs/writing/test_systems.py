"""Every dump system gets a configuration in its own language."""

import ast
import json
import shlex
from dataclasses import replace

import pytest
import yaml

from ingest.dump_configs.model import DumpRequest, RequestedOperator, WrittenConfig
from ingest.dump_configs.writing.systems import WRITERS, system_of, write_config
from workers.errors import UsageError

LOG = RequestedOperator("Net", "0", "Log", "Default_net_Log-op0", "Default/net/Log-op0")
CAST = RequestedOperator("Net", "0", "Cast", "Default_net_Cast-op11")
CALL = RequestedOperator("", "", "Functional.relu", "Functional.relu.0.forward")
LAYER = RequestedOperator("", "", "Module.Linear", "Module.fc.Linear.forward.0")
REQUEST = DumpRequest(
    operators=(LOG, CAST),
    steps=(8, 9),
    ranks=(1,),
    job_ranks=(0, 1),
    directory="/data/dump_next",
    version="2.10.0",
    device="Ascend",
)


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


def test_msprobe_in_one_process_is_told_no_rank() -> None:
    request = replace(REQUEST, operators=(CALL,), ranks=(0,), job_ranks=(0,))
    assert json.loads(write_config("msprobe", request).text)["rank"] == []


def test_msprobe_cannot_be_told_what_it_saves_in_any_case() -> None:
    saved = RequestedOperator("", "", "debug", "activations.0.debug")
    with pytest.raises(UsageError, match=r"activations\.0\.debug"):
        write_config("msprobe", replace(REQUEST, operators=(saved,)))


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


def test_variables_of_sglang_are_shell_and_their_filter_is_python() -> None:
    text = write_config("sglang", replace(REQUEST, operators=(replace(LAYER, op_name="layers.1.attn"),))).text
    values = dict(shlex.split(line)[1].split("=", 1) for line in text.splitlines())
    assert (values["DUMPER_DIR"], values["DUMPER_EXP_NAME"]) == ("/data", "dump_next")
    expression = compile(values["DUMPER_FILTER"], "filter", "eval")
    assert eval(expression, {"name": "non_intrusive__layers.1.attn.output"})  # noqa: S307  (as SGLang does)


def test_transformer_engine_is_told_layers_and_steps() -> None:
    request = replace(REQUEST, operators=(replace(LAYER, op_name="decoder_0"),), steps=(3, 8, 9))
    content = yaml.safe_load(write_config("te", request).text)["next_dump"]
    assert content["layers"]["layer_name_regex_pattern"] == "(?:decoder.0)"
    tensors = content["transformer_engine"]["DumpTensors"]["tensors_struct"]
    assert {tuple(map(tuple, tensor["start_end_list"])) for tensor in tensors} == {((3, 3), (8, 9))}


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
