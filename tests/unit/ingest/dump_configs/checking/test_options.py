"""What TorchAir and TensorFlow would refuse or ignore in lines of Python."""

import pytest

from ingest.dump_configs.model import Severity
from tests.guide_configs import TENSORFLOW, TORCHAIR, assert_named

R, W = Severity.REFUSED, Severity.WARNING
WRONG = [
    (TORCHAIR.replace("True\n", "False\n", 1), W, "enable_dump: is not True"),
    (TORCHAIR.replace('"0|1"', '"1-"'), R, "dump_step: '1-' must be groups"),
    (TORCHAIR.replace("Add2", "Add|2"), R, "dump_layer: 'Add_1Mul_1 Add|2' must be names"),
    (TORCHAIR.replace('"stats"', '"statistics"'), R, "dump_data: 'statistics' is not one of"),
    (TORCHAIR + "config.dump_config.dump_config_path = '/c.json'", W, "is overridden by dump_layer"),
    (TENSORFLOW + 'custom_op.parameter_map["enable_dump_debug"].b = True', R, "exclude each other"),
    ('custom_op.parameter_map["enable_dump"].b = True', R, "dump_path: is missing"),
    (TENSORFLOW + 'custom_op.parameter_map["enable_exception_dump"].i = 1', W, "nothing but exceptions"),
    ('custom_op.parameter_map["enable_exception_dump"].i = 3', R, "enable_exception_dump: 3 is not one of"),
    (
        TENSORFLOW + 'custom_op.parameter_map["dump_debug_mode"].s = "all"',
        W,
        "no effect without enable_dump_debug",
    ),
    ('DumpConfig(enable_dump=True, dump_path="/d", dump_step="0,5")', R, "dump_step: '0,5' must be groups"),
]


@pytest.mark.parametrize(("text", "severity", "reason"), WRONG, ids=[reason for *_, reason in WRONG])
def test_a_wrong_configuration_is_named_with_the_reason(text: str, severity: Severity, reason: str) -> None:
    assert_named(text, severity, reason)
