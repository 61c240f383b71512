"""Configurations of every dump system: those of the guides pass, wrong ones are named with the reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from ingest.dump_configs.checking.check import check_dump_config, check_text, worst_first
from ingest.dump_configs.model import Severity
from ingest.dump_configs.writing.systems import WRITERS, write_config
from tests.dump_requests import REQUEST_OF
from workers.errors import UsageError

COMMON: dict[str, Any] = {
    "op_debug_mode": 0,
    "dump_mode": 0,
    "path": "/absolute_path",
    "net_name": "ResNet50",
    "iteration": "0|5-8|100-120",
    "saved_data": "tensor",
    "input_output": 0,
    "kernels": ["Default/Conv-op12"],
    "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
    "statistic_category": ["max", "min", "l2norm"],
}
E2E: dict[str, Any] = {"enable": True, "trans_flag": True, "stat_calc_mode": "host"}
MSPROBE: dict[str, Any] = {
    "task": "tensor",
    "dump_path": "/home/data_dump",
    "rank": [],
    "step": [],
    "level": "L1",
    "async_dump": False,
    "tensor": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "md5", "diff_nums": 5},
}
ACL: dict[str, Any] = {
    "dump_list": [
        {"model_name": "ResNet-101"},
        {"model_name": "ResNet-50", "layer": ["conv1conv1_relu", "res2a_branch1", "pool1"]},
    ],
    "dump_path": "/home/output",
    "dump_mode": "output",
    "dump_op_switch": "off",
    "dump_data": "tensor",
}
WATCHER: dict[str, Any] = {
    "dump_list": [{"layer": ["A", "B"], "watcher_nodes": ["C", "D"]}],
    "dump_path": "/home/",
    "dump_mode": "output",
    "dump_scene": "watcher",
}
RANGE = {"model_name": "ResNet-50", "opname_range": [{"begin": "conv1", "end": "relu1"}]}
TORCHAIR = """
config.dump_config.enable_dump = True
config.dump_config.dump_mode = "all"
config.dump_config.dump_path = '/home/dump'
config.dump_config.quant_dumpable = True
config.dump_config.dump_step = "0|1"
config.dump_config.dump_layer = "Add_1Mul_1 Add2"
config.dump_config.dump_data = "stats"
"""
TENSORFLOW = """
custom_op.parameter_map["use_off_line"].b = True
custom_op.parameter_map["enable_dump"].b = True
custom_op.parameter_map["dump_path"].s = tf.compat.as_bytes("/home/output")
custom_op.parameter_map["dump_step"].s = tf.compat.as_bytes("0|5|10")
custom_op.parameter_map["dump_mode"].s = tf.compat.as_bytes("all")
custom_op.parameter_map["dump_layer"].s = tf.compat.as_bytes("nodename1 nodename2 nodename3")
"""
SGLANG = "DUMPER_ENABLE=1 DUMPER_FILTER='layer_id in [0,1,2,3]' python -m sglang.launch_server"
TE = """
dump_tensors_example:
    enabled: True
    layers:
        layer_name_regex_pattern: .*(fc1|self_attention).*
    transformer_engine:
        DumpTensors:
            enabled: True
            tensors_struct:
                - tensor: activation
                  high_precision_tensor: True
                  quantized_tensor: True
                  dump_quantized_internals: True
                  freq: 100
                - tensor: weight
                  high_precision_tensor: True
                  quantized_tensor: False
                  freq: 500
"""


def mindspore(e2e: dict[str, Any] | None = None, **changes: Any) -> str:
    """Return the guide's `data_dump.json` with changes; a value of None removes the key."""
    common = {key: value for key, value in {**COMMON, **changes}.items() if value is not None}
    return json.dumps({"common_dump_settings": common, "e2e_dump_settings": {**E2E, **(e2e or {})}})


def asynchronous(**changes: Any) -> str:
    return json.dumps({"common_dump_settings": {**COMMON, **changes}})


def msprobe(task: dict[str, Any] | None = None, **changes: Any) -> str:
    content = {**MSPROBE, **changes}
    name = content["task"]
    return json.dumps({**content, name: {**content.get(name, {}), **(task or {})}})


def acl(base: dict[str, Any] = ACL, **changes: Any) -> str:
    return json.dumps({"dump": {k: v for k, v in {**base, **changes}.items() if v is not None}})


def te(old: str, new: str) -> str:
    assert old in TE
    return TE.replace(old, new)


GUIDES = {
    "MindSpore, ms_backend": mindspore(),
    "MindSpore, asynchronous, npy": asynchronous(file_format="npy"),
    "MindSpore, overflow": asynchronous(op_debug_mode=3, overflow_number=3),
    "MindSpore, expressions": mindspore(dump_mode=1, kernels=["name-regex(Default/.+)", "Conv2D"]),
    "MindSpore, sample": mindspore({"sample_mode": 1, "sample_num": 100}),
    "msProbe, tensor": msprobe({"bench_path": "/home/bench_data_dump"}),
    "msProbe, AclGraphDumper": msprobe({"custom_api": ["my_module.my_function"]}),
    "msProbe, statistics": json.dumps(
        {
            **{key: value for key, value in MSPROBE.items() if key != "tensor"},
            "task": "statistics",
            "extra_info": True,
            "statistics": {"scope": [], "list": [], "tensor_list": [], "data_mode": ["all"]},
        }
    ),
    "msProbe, dynamic": '{"task": "statistics", "dump_path": "/d", "level": "L1", "dump_enable": false}',
    "msProbe, structure": '{"task": "structure", "dump_path": "/d", "rank": [], "step": [], "level": "mix"}',
    "msProbe, exception": '{"task": "exception_dump", "dump_path": "/d", "level": "L2"}',
    "msProbe, overflow": json.dumps(
        {"task": "overflow_check", "dump_path": "/d", "level": "L2", "overflow_check": {"check_mode": "all"}}
    ),
    "msProbe, acc_check": json.dumps(
        {"task": "acc_check", "dump_path": "/d", "level": "L1", "acc_check": {"white_list": []}}
    ),
    "ACL, models": acl(),
    "ACL, one operator": acl(dump_list=[{}], dump_op_switch="on", dump_mode=None),
    "ACL, range": acl(dump_list=[RANGE], dump_level="op"),
    "ACL, statistics": acl(dump_data="stats", dump_stats=["Max", "Min"]),
    "ACL, steps": acl(dump_step="0|3-5|10"),
    "ACL, overflow": '{"dump": {"dump_path": "output", "dump_debug": "on"}}',
    "ACL, watcher": acl(WATCHER),
    "ACL, kernel data": '{"dump": {"dump_kernel_data": "printf,assert", "dump_path": "/home/"}}',
    "TorchAir": TORCHAIR,
    "TorchAir, file": "c.dump_config.enable_dump = True\nc.dump_config.dump_config_path = '/c.json'",
    "TensorFlow": TENSORFLOW,
    "TensorFlow 2": "npu_device.global_options().dump_config.enable_dump = True\n"
    "npu_device.global_options().dump_config.dump_path = '/d'\n",
    "SGLang": SGLANG,
    "TransformerEngine": TE,
}


@pytest.mark.parametrize("name", GUIDES)
def test_the_examples_of_the_guides_pass(name: str) -> None:
    checked = check_text(GUIDES[name], name)
    assert checked.to_dict()["ok"] is True
    # msProbe 26.2 refuses a task that its guide still has.
    expected = ["task"] if name == "msProbe, overflow" else []
    assert [finding.key for finding in checked.findings] == expected


R, W = Severity.REFUSED, Severity.WARNING
WRONG = [
    # MindSpore
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
    # msProbe
    ('{"task": "tensors", "dump_path": "/d"}', R, "task: 'tensors' is not one of"),
    ('{"task": "tensor", "level": "L1"}', R, "dump_path: is missing"),
    ('{"task": "tensor", "dump_path": "/d"}', W, "the section tensor is missing"),
    (msprobe(level="L3"), R, "level: 'L3' is not one of"),
    (msprobe(rank=1), R, "rank: must be a list"),
    (msprobe(step=["6-4"]), R, "step: '6-4' is neither a step nor a range"),
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
    (msprobe(level="L2"), W, "list: must have exactly one name at level L2"),
    (msprobe({"tensor_list": ["relu"]}), W, "tensor_list: is for the task statistics"),
    ('{"task": "structure", "dump_path": "/d", "level": "L1"}', W, "level: is taken as mix"),
    (
        '{"task": "nan_check", "dump_path": "/d", "level": "L0"}',
        R,
        "level: must be L1 for the task nan_check",
    ),
    # ACL
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
    # lines of Python
    (TORCHAIR.replace("True\n", "False\n", 1), W, "enable_dump: is not True"),
    (TORCHAIR.replace('"0|1"', '"1-"'), R, "dump_step: '1-' must be groups"),
    (TORCHAIR.replace("Add2", "Add|2"), R, "dump_layer: 'Add_1Mul_1 Add|2' must be names"),
    (TORCHAIR.replace('"stats"', '"statistics"'), R, "dump_data: 'statistics' is not one of"),
    (TORCHAIR + "config.dump_config.dump_config_path = '/c.json'", W, "is of less rank than dump_layer"),
    (TENSORFLOW + 'custom_op.parameter_map["enable_dump_debug"].b = True', R, "exclude each other"),
    ('custom_op.parameter_map["enable_dump"].b = True', R, "dump_path: is missing"),
    # the PyTorch world
    ("DUMPER_FILTER='step < 2' DUMPER_ENABLE=1", W, "step is not a tag that the filter knows"),
    ("DUMPER_FILTER='layer_id in' DUMPER_ENABLE=1", R, "is not an expression of Python"),
    ("export DUMPER_FILTR=x DUMPER_ENABLE=1", W, "DUMPER_FILTR: is not a key, and ignored; is DUMPER_FILTER"),
    ("export DUMPER_DIR=/tmp/x", W, "DUMPER_ENABLE: is not 1"),
    ("DUMPER_NON_INTRUSIVE_MODE=full DUMPER_ENABLE=1", R, "'full' is not one of off, core, all"),
    ("SGLANG_DUMPER_ENABLE=1", W, "SGLANG_DUMPER_ENABLE is not read"),
    (te("tensor: activation", "tensor: activations"), R, "'activations' is not one of"),
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
    findings = check_text(text, "config").findings
    matching = [finding for finding in findings if reason in str(finding)]
    assert matching, [str(finding) for finding in findings]
    assert matching[0].severity is severity
    assert matching[0].source.startswith("https://")


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


@pytest.mark.parametrize("system", WRITERS)
def test_what_next_writes_passes(system: str) -> None:
    config = write_config(system, REQUEST_OF[system])
    checked = check_text(config.text, config.file_name, version="2.10.0", device="Ascend")
    assert (checked.system, checked.findings) == (system, ())


def test_what_is_asked_for_is_read() -> None:
    sampled = mindspore({"sample_mode": 1}, saved_data="full", iteration="all", support_device=[1])
    asked = check_text(sampled, "config").asked
    assert asked is not None
    assert (asked.steps, asked.devices) == (None, frozenset([1]))
    assert (asked.sample, asked.saved) == (100, "elements and statistics")
    probed = check_text(msprobe({"list": ["relu"]}, step=[0, "4-6"], rank=[1]), "config").asked
    assert probed is not None
    assert (probed.steps, probed.devices) == (frozenset([0, 4, 5, 6]), frozenset([1]))
    assert probed.operators is not None
    assert probed.operators[0].matches("Torch.relu", "Torch.relu.0.forward")


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
    assert [finding.severity for finding in worst_first(findings)] == [R, W]
    with pytest.raises(UsageError, match="no device 'NPU'"):
        check_dump_config("x", device="NPU")
