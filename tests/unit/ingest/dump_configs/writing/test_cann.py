"""What ACL, TorchAir and TensorFlow are given."""

import ast
import json

import pytest

from ingest.dump_configs.writing import write_config
from tests.dump_requests import REQUEST


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
