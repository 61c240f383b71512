"""Configurations of every system are checked."""

from pathlib import Path
from typing import Any

import pytest

from ingest.dump_configs.check import check_dump_config, check_text, variables_of, worst_first
from ingest.dump_configs.model import Severity
from ingest.dump_configs.writing import WRITERS, write_config
from tests.guide_configs import (
    BLACKLIST,
    GUIDES,
    RANGE,
    REQUEST_OF,
    TENSORFLOW,
    TORCHAIR,
    WATCHER,
    acl,
    assert_named,
    asynchronous,
    mindspore,
    msprobe,
    te,
)
from workers.errors import UsageError


@pytest.mark.parametrize("name", GUIDES)
def test_the_examples_of_the_guides_pass(name: str) -> None:
    checked = check_text(GUIDES[name], name)
    assert checked.to_dict()["ok"] is True
    # msProbe 26.2 refuses a task that its guide still has.
    expected = ["task"] if name == "msProbe, overflow" else []
    assert [finding.key for finding in checked.findings] == expected


@pytest.mark.parametrize("system", WRITERS)
def test_what_next_writes_passes(system: str) -> None:
    config = write_config(system, REQUEST_OF[system])
    checked = check_text(config.text, config.file_name, version="2.10.0", device="Ascend")
    assert (checked.system, checked.findings) == (system, ())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "is not the configuration of a dump system"),
        ('{"a": 1}', "is not the configuration of a dump system"),
        ("nothing", "is not the configuration of a dump system"),
        (b"\xff\xfe\x00", "is not text"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(
    tmp_path: Path, content: str | bytes | None, message: str
) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=message) as error:
        check_dump_config(path)
    assert str(path) in str(error.value)


def test_the_worst_comes_first() -> None:
    findings = check_text(mindspore(path="", dump_mode=1, kernels=["name-regex(()"]), "config").findings
    assert [finding.severity for finding in worst_first(findings)] == [Severity.REFUSED, Severity.WARNING]
    with pytest.raises(UsageError, match="no device 'NPU'"):
        check_dump_config("x", device="NPU")


def blacklisted(entries: list[dict[str, Any]]) -> str:
    return acl(dump_list=[{"optype_blacklist": entries}], dump_level="op")


R, W = Severity.REFUSED, Severity.WARNING
OF_ACL = [
    ('{"dump": {"dump_mode": "all"}}', R, "dump_path: is missing or empty"),
    (acl(dump_path="/a b"), R, "dump_path: '/a b' has a character"),
    (acl(dump_path="192.168.0.1:"), R, "names a host and no directory"),
    (acl(dump_mode="both"), R, "dump_mode: 'both' is not one of"),
    (acl(dump_step="1-2-3"), R, "dump_step: '1-2-3' is neither"),
    (acl(dump_step="|".join(map(str, range(101)))), R, "more than 100 groups"),
    (acl(dump_step="8-5"), W, "the range '8-5' does not rise"),
    (acl(dump_level="layer"), R, "dump_level: 'layer' is not one of"),
    (acl(dump_debug="on"), R, "dump_list: must be empty if dump_debug is on"),
    (acl(dump_data="stats", dump_stats=[]), R, "dump_stats: is empty"),
    (acl(dump_stats=["Max"]), R, "dump_stats: needs dump_data: stats"),
    (acl(dump_list=[RANGE]), R, "opname_range: needs dump_level: op"),
    (acl(dump_list=[{"layer": []}]), W, "layer: is empty: this model is left out"),
    (acl(dump_list=None), W, "dump_op_switch is off: nothing is dumped"),
    (acl(WATCHER, dump_mode="all"), R, "dump_mode: must be output in the scene watcher"),
    (acl(WATCHER, dump_op_switch="on"), R, "watcher and dump_op_switch exclude each other"),
    (acl(WATCHER, dump_debug="on"), R, "watcher and dump_debug exclude each other"),
    (acl(WATCHER, dump_list=[{"layer": ["A"]}]), W, "the scene watcher dumps nothing"),
    (acl(WATCHER, dump_scene="watch"), R, "dump_scene: 'watch' is not one of"),
    (acl(dump_debug="on", dump_list=None, dump_op_switch="on"), R, "dump_op_switch: and dump_debug exclude"),
    (acl(dump_list=[{"opname_blacklist": BLACKLIST}]), W, "need dump_level: op, and are ignored"),
    (blacklisted([{"name": "conv", "pos": ["in0"]}]), W, "pos: 'in0' of a blacklist is neither"),
    (blacklisted([{"name": "", "pos": ["input0"]}]), W, "the entry is ignored"),
    (blacklisted(BLACKLIST * 101), R, "more than 100 entries"),
    (acl(dump_list=[{"model_name": "a"}, {"model_name": "a"}]), W, "model_name: 'a' is named twice"),
    (acl(dump_kernel_data="printf,time"), W, "dump_kernel_data: 'time' is not one of all"),
    (acl(dump_scene="lite_exception", dump_op_switch=None), W, "the scene lite_exception exclude each other"),
]


def test_a_variable_of_the_environment_counts_more_than_the_path_of_a_scene(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = acl(dump_scene="lite_exception", dump_list=None, dump_op_switch=None)
    assert check_text(text, "acl.json").findings == ()
    monkeypatch.setenv("ASCEND_WORK_PATH", "/work")
    assert_named(text, W, "dump_path: is ignored: ASCEND_WORK_PATH is set")


OF_MINDSPORE = [
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


OF_MSPROBE = [
    ('{"task": "tensors", "dump_path": "/d"}', R, "task: 'tensors' is not one of"),
    ('{"task": "tensor", "level": "L1"}', R, "dump_path: is missing"),
    ('{"task": "tensor", "dump_path": "/d"}', W, "the section tensor is missing"),
    (msprobe(level="L3"), R, "level: 'L3' is not one of"),
    (msprobe(rank=1), R, "rank: must be a list"),
    (msprobe(step=["6-4"]), R, "step: '6-4' is neither a step up to 1000000 nor a range"),
    (msprobe({"scope": ["Torch.relu.0.forward"]}), R, "scope: must have two names"),
    (msprobe({"scope": ["relu", "add"]}), R, "scope: relu is not the whole name"),
    (msprobe({"data_mode": ["all", "input"]}), R, "data_mode: all cannot be combined"),
    (msprobe({"data_mode": ["gradient"]}), R, "tensor.data_mode: 'gradient' is not one of"),
    (msprobe({"summary_mode": "sha1"}), R, "summary_mode: 'sha1' is not a statistic"),
    (msprobe({"summary_mode": "statistics"}, async_dump=True), R, "list: is empty, which async_dump"),
    (msprobe({"list": ["Torch.relu.0.forward"]}, async_dump=True), R, "md5 is not possible with async_dump"),
    (msprobe({"diff_nums": 0}), R, "diff_nums: must be -1 or at least 1"),
    (msprobe({"list": ["name-regex(Default/.+)"]}), W, "is a regular expression"),
    (msprobe({"list": ["Torch.relu"]}), W, "Torch.relu is not the whole name of a call"),
    (msprobe({"diff_nums": -2}), R, "diff_nums: must be -1 or at least 1"),
    (msprobe({"slice": [{"dim": 0, "size": -1}]}), R, "slice: {'dim': 0, 'size': -1} is not an object of"),
    (msprobe({"summary_mode": ["max"]}), W, "summary_mode: a list is for MindSpore"),
    (msprobe(step=[2_000_000]), R, "step: 2000000 is neither a step up to 1000000"),
    (msprobe(async_dump=None), R, "async_dump: must be true or false, not None"),
    ('{"dump_path": "/d", "level": "L1"}', W, "task: is missing"),
    ('{"task": "diff_check", "dump_path": "/d", "level": "L2"}', W, "task: must be tensor at level L2"),
    (msprobe(level="L2"), W, "list: must have exactly one name at level L2"),
    (msprobe({"tensor_list": ["relu"]}), W, "tensor_list: is for the task statistics"),
    ('{"task": "structure", "dump_path": "/d", "level": "L1"}', W, "level: is taken as mix"),
    (
        '{"task": "nan_check", "dump_path": "/d", "level": "L0"}',
        R,
        "level: must be L1 for the task nan_check",
    ),
]


@pytest.mark.parametrize(
    "text",
    [
        msprobe({"scope": None, "list": None, "slice": None}, rank=None, step=None, risk_level=None),
        '{"task": "overflow_check", "dump_path": "/d", "overflow_check": {"list": [3], "scope": 4}}',
    ],
    ids=["null", "section of a former task"],
)
def test_what_msprobe_takes_is_not_refused(text: str) -> None:
    assert not check_text(text, "config").refused


OF_OPTIONS = [
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


#: The same options for all tensors.
TOGETHER = """
example:
  enabled: True
  layers: {layer_name_regex_pattern: .*}
  transformer_engine: {DumpTensors: {enabled: True, tensors: [activation, weight], OPTIONS}}
"""
OF_PYTORCH = [
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


def test_blank_variables_count_as_not_set() -> None:
    text = "DUMPER_ENABLE=1 DUMPER_DIR= DUMPER_NON_INTRUSIVE_MODE= DUMPER_COLLECTIVE_TIMEOUT=' '"
    checked = check_text(text, "config")
    assert not checked.findings
    assert checked.asked is not None
    assert checked.asked.directory == "/tmp/dumper"  # noqa: S108  (SGLang's default)


def test_variables_are_those_that_a_shell_would_set() -> None:
    text = "export A=1 B='x y' \\\n  C=\n# D=2\nunclosed='\nA=2 python -m server --x=1\n2E=3"
    assert variables_of(text) == {"A": "1", "B": "x y", "C": ""}


WRONG = [*OF_ACL, *OF_MINDSPORE, *OF_MSPROBE, *OF_OPTIONS, *OF_PYTORCH]


@pytest.mark.parametrize(("text", "severity", "reason"), WRONG, ids=[reason for *_, reason in WRONG])
def test_a_wrong_configuration_is_named_with_the_reason(text: str, severity: Severity, reason: str) -> None:
    assert_named(text, severity, reason)
