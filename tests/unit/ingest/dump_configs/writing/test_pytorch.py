"""What SGLang's dumper and TransformerEngine are given."""

import re
import shlex
from dataclasses import replace

import yaml

from ingest.dump_configs.writing import write_config
from tests.dump_requests import LAYER, REQUEST


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
