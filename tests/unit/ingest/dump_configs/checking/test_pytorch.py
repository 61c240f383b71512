"""What SGLang's dumper and TransformerEngine would refuse or ignore."""

import pytest

from ingest.dump_configs.checking.check import check_text
from ingest.dump_configs.checking.pytorch import variables_of
from ingest.dump_configs.model import Severity
from tests.guide_configs import assert_named, te

R, W = Severity.REFUSED, Severity.WARNING
#: The same options for all tensors.
TOGETHER = """
example:
  enabled: True
  layers: {layer_name_regex_pattern: .*}
  transformer_engine: {DumpTensors: {enabled: True, tensors: [activation, weight], OPTIONS}}
"""
WRONG = [
    ("DUMPER_FILTER='step < 2' DUMPER_ENABLE=1", W, "step is not a tag that the filter knows"),
    ("DUMPER_FILTER='layer_id in' DUMPER_ENABLE=1", R, "is not an expression of Python"),
    ("export DUMPER_FILTR=x DUMPER_ENABLE=1", W, "DUMPER_FILTR: is not a key, and ignored; is DUMPER_FILTER"),
    ("export DUMPER_DIR=/tmp/x", W, "DUMPER_ENABLE: is not 1"),
    ("DUMPER_NON_INTRUSIVE_MODE=full DUMPER_ENABLE=1", R, "'full' is not one of off, core, all"),
    ("SGLANG_DUMPER_ENABLE=1", W, "SGLANG_DUMPER_ENABLE is not read"),
    (te("tensor: activation", "tensor: activations"), R, "'activations' is not one of"),
    (
        te("tensors_struct:", "tensors: wgrads\n            tensors_struct:"),
        R,
        "'wgrads' is not a tensor of a layer",
    ),
    (te("tensors_struct:", "tensors: 2\n            tensors_struct:"), R, "2 is not a tensor of a layer"),
    (TOGETHER.replace("OPTIONS", "freq: 2"), W, "example.DumpTensors.high_precision_tensor: and quantized"),
    (TOGETHER.replace("OPTIONS", "high_precision_tensor: True, freq: 0"), R, "freq: must be at least 1"),
    (te("freq: 100", "freq: 0"), R, "freq: must be at least 1"),
    (te("layer_name_regex_pattern", "names"), R, "layers: must have layer_types"),
    (
        te("high_precision_tensor: True\n                  quantized_tensor: False", "freq2: 1"),
        W,
        "are both off",
    ),
]


@pytest.mark.parametrize(("text", "severity", "reason"), WRONG, ids=[reason for *_, reason in WRONG])
def test_a_wrong_configuration_is_named_with_the_reason(text: str, severity: Severity, reason: str) -> None:
    assert_named(text, severity, reason)


def test_blank_variables_count_as_not_set() -> None:
    text = "DUMPER_ENABLE=1 DUMPER_DIR= DUMPER_NON_INTRUSIVE_MODE= DUMPER_COLLECTIVE_TIMEOUT=' '"
    checked = check_text(text, "config")
    assert not checked.findings
    assert checked.asked is not None
    assert checked.asked.directory == "/tmp/dumper"  # noqa: S108  (SGLang's default)


def test_variables_are_those_that_a_shell_would_set() -> None:
    text = "export A=1 B='x y' \\\n  C=\n# D=2\nunclosed='\nA=2 python -m server --x=1\n2E=3"
    assert variables_of(text) == {"A": "1", "B": "x y", "C": ""}
