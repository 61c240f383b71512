"""Configurations of every dump system as its guide has them, changes to them, and requests for the next."""

import json
from dataclasses import replace
from typing import Any

from ingest.dump_configs.check import check_text
from ingest.dump_configs.model import DumpRequest, RequestedOperator, Severity

# Configurations of every dump system as its guide has them, and changes to them.


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
BLACKLIST = [{"name": "conv", "pos": ["input0", "input1"]}]
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
    "msProbe, statistics": json.dumps(
        {
            **{key: value for key, value in MSPROBE.items() if key != "tensor"},
            "task": "statistics",
            "extra_info": True,
            "statistics": {"scope": [], "list": [], "tensor_list": [], "data_mode": ["all"]},
        }
    ),
    "msProbe, AclGraphDumper": msprobe({"custom_api": ["my_module.my_function"]}),
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
    "ACL, one operator, before 8.1": acl(dump_list=[], dump_op_switch="on", dump_mode=None),
    "ACL, all models": acl(dump_list=[{}]),
    "ACL, blacklist": acl(
        dump_list=[{"model_name": "ResNet-50", "optype_blacklist": BLACKLIST, "opname_blacklist": BLACKLIST}],
        dump_mode="input",
        dump_level="op",
    ),
    "ACL, ranges": acl(
        dump_list=[
            {
                **RANGE,
                "opname_range": [{"begin": "conv1", "end": "relu1"}, {"begin": "conv2", "end": "pool1"}],
            }
        ],
        dump_level="op",
    ),
    "ACL, exception": '{"dump": {"dump_path": "output", "dump_scene": "aic_err_brief_dump"}}',
    "ACL, exception, before 8.1": '{"dump": {"dump_scene": "lite_exception"}}',
    "ACL, range": acl(dump_list=[RANGE], dump_level="op"),
    "ACL, statistics": acl(dump_data="stats", dump_stats=["Max", "Min"]),
    "ACL, steps": acl(dump_step="0|3-5|10"),
    "ACL, overflow": '{"dump": {"dump_path": "output", "dump_debug": "on"}}',
    "ACL, watcher": acl(WATCHER),
    "ACL, kernel data": '{"dump": {"dump_kernel_data": "printf,assert", "dump_path": "/home/"}}',
    "TorchAir": TORCHAIR,
    "TorchAir, file": "c.dump_config.enable_dump = True\nc.dump_config.dump_config_path = '/c.json'",
    "TensorFlow": TENSORFLOW,
    "TensorFlow, overflow": """
custom_op.parameter_map["dump_path"].s = tf.compat.as_bytes("/home/test/output")
custom_op.parameter_map["enable_dump_debug"].b = True
custom_op.parameter_map["dump_debug_mode"].s = tf.compat.as_bytes("all")
""",
    "TensorFlow, exception": 'custom_op.parameter_map["enable_exception_dump"].i = 1',
    "TensorFlow, Estimator": 'dump_config = DumpConfig(enable_dump=True, dump_path = "/home/test/output", '
    'dump_step="0|5|10", dump_mode="all")\nconfig = NPURunConfig(dump_config=dump_config)',
    "TensorFlow, Estimator, overflow": "dump_config = DumpConfig(enable_dump_debug = True, "
    'dump_path = "/home/test/output", dump_debug_mode = "all" )',
    "TensorFlow 2": "npu_device.global_options().dump_config.enable_dump = True\n"
    "npu_device.global_options().dump_config.dump_path = '/d'\n",
    "SGLang": SGLANG,
    "TransformerEngine": TE,
}


def assert_named(text: str, severity: Severity, reason: str) -> None:
    """Assert that checking a configuration names what is wrong with it, and the page that says so."""
    findings = check_text(text, "config").findings
    matching = [finding for finding in findings if reason in str(finding)]
    assert matching, [str(finding) for finding in findings]
    assert matching[0].severity is severity
    assert matching[0].source.startswith("https://")


# Requests for the next dump, of each system.


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
_ATTENTION = RequestedOperator("", "", "Module.attn", "layers.1.attn")
_OF_LOG = replace(REQUEST, operators=(LOG,))
REQUEST_OF = {
    **dict.fromkeys(("mindspore", "acl", "torchair", "tensorflow"), _OF_LOG),
    "msprobe": replace(REQUEST, operators=(CALL,)),
    **dict.fromkeys(("sglang", "te"), replace(REQUEST, operators=(_ATTENTION,))),
}
