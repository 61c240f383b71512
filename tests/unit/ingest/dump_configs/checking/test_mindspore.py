"""What MindSpore would refuse or ignore in its `data_dump.json`, also by version and device."""

import pytest

from ingest.dump_configs.checking.check import check_text
from ingest.dump_configs.model import Severity
from tests.guide_configs import assert_named, asynchronous, mindspore

R, W = Severity.REFUSED, Severity.WARNING
WRONG = [
    ('{"e2e_dump_settings": {}}', R, "common_dump_settings: is missing"),
    (mindspore(net_name=None), R, "net_name: is missing"),
    (mindspore(kernels=None), R, "kernels: is missing"),
    (mindspore(dump_mode=3), R, "dump_mode: 3 is not one of 0, 1, 2"),
    (mindspore(dump_mode="1"), R, "dump_mode: must be a whole number"),
    (mindspore(path="dump"), R, "path: 'dump' is not absolute"),
    (mindspore(path="/my.dump"), R, "path: '/my.dump' has characters"),
    (mindspore(path=""), W, "path: is empty"),
    (mindspore(net_name="Res Net"), R, "net_name: 'Res Net'"),
    (mindspore(iteration="0 | 5"), R, "iteration: '0 | 5' must be made of digits"),
    (mindspore(iteration=5), R, "iteration: must be a text"),
    (mindspore(iteration="8-5"), W, "no iteration is in the group '8-5'"),
    (mindspore(iteration="5-"), W, "no iteration is in the group '5-'"),
    (mindspore(input_output=3), R, "input_output: 3 is not one of"),
    (mindspore(dump_mode=1, kernels=[]), W, "kernels: is empty although dump_mode is 1"),
    (mindspore(dump_mode=1, kernels=["name-regex(Default/(+)"]), R, "kernels: is not a regular expression"),
    (mindspore(dump_mode=1, kernels=[r"name-regex(a\.b)"]), W, "kernels: has a backslash"),
    (mindspore(dump_mode=1, kernels=["a/b", "a/b"]), W, "kernels: has a/b twice"),
    (mindspore(support_device=["0"]), R, "support_device: '0' is not a device id"),
    (mindspore(op_debug_mode=5), R, "op_debug_mode: 5 is not one of"),
    (mindspore(op_debug_mode=1), W, "op_debug_mode: 1 is taken as 3"),
    (mindspore(op_debug_mode=3, dump_mode=1), W, "dump_mode and kernels are ignored"),
    (mindspore(op_debug_mode=3, input_output=1), W, "input_output: is ignored"),
    (mindspore(op_debug_mode=4), W, "iteration: is ignored"),
    (mindspore(overflow_number=3), R, "overflow_number: may be set only if"),
    (mindspore(saved_data="all"), R, "saved_data: 'all' is not one of"),
    (mindspore(saved_data="statistic", statistic_category=["median"]), R, "statistic_category: 'median'"),
    (mindspore({"stat_calc_mode": "device"}), W, "stat_calc_mode: device is taken as host"),
    (
        mindspore({"stat_calc_mode": "device"}, saved_data="statistic", statistic_category=["nan count"]),
        W,
        "statistic_category: nan count is computed on the host alone",
    ),
    (mindspore({"sample_mode": 2}), R, "sample_mode: 2 is not one of"),
    (mindspore({"sample_mode": 1, "sample_num": 0}), R, "sample_num: must be at least 1"),
    (mindspore({"sample_num": 50}), W, "sample_num: is ignored"),
    (mindspore({"sample_mode": 1}, op_debug_mode=3), W, "sample_mode: is ignored"),
    (mindspore({"enable": False, "save_kernel_args": True}), W, "save_kernel_args: needs enable: true"),
    (mindspore(file_format="bin"), W, "file_format: is ignored by the synchronous dump"),
    (mindspore(savd_data="full"), W, "savd_data: is not a key, and ignored; is saved_data meant?"),
]


@pytest.mark.parametrize(("text", "severity", "reason"), WRONG, ids=[reason for *_, reason in WRONG])
def test_a_wrong_configuration_is_named_with_the_reason(text: str, severity: Severity, reason: str) -> None:
    assert_named(text, severity, reason)


@pytest.mark.parametrize(
    ("text", "version", "device", "reason"),
    [
        (mindspore(saved_data="statistic"), "2.10.0", "CPU", "statistics are not supported on CPU"),
        (mindspore(dump_mode=2), "", "GPU", "2 (set_dump) is for Ascend"),
        (mindspore(support_device=[]), "", "Ascend", "no device dumps anything"),
        (mindspore(support_device=[1]), "", "CPU", "is ignored on CPU"),
        (mindspore(op_debug_mode=3), "", "GPU", "nothing supports on CPU and GPU"),
        (mindspore({"sample_mode": 1}), "", "CPU", "not supported on CPU"),
        (mindspore(dump_mode=1, kernels=["name-regex(a)"]), "2.2.1", "", "know no regular expressions"),
        (mindspore(op_debug_mode=4), "2.0.0", "", "4 is not known to versions before 2.3"),
        (mindspore(saved_data="full"), "2.1.0", "Ascend", "are not supported before 2.3"),
        (asynchronous(saved_data="statistic"), "2.2.0", "Ascend", "need file_format npy"),
    ],
)
def test_version_and_device_decide_in_mindspore(text: str, version: str, device: str, reason: str) -> None:
    checked = check_text(text, "config", version=version, device=device)
    assert any(reason in str(finding) for finding in checked.findings), checked.findings
