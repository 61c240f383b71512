"""A request for the next dump of each system."""

from dataclasses import replace

from ingest.dump_configs.model import DumpRequest, RequestedOperator

_LOG = RequestedOperator("Net", "0", "Log", "Default_net_Log-op0", "Default/net/Log-op0")
_CALL = RequestedOperator("", "", "Functional.relu", "Functional.relu.0.forward")
_LAYER = RequestedOperator("", "", "Module.attn", "layers.1.attn")
_REQUEST = DumpRequest((_LOG,), (8, 9), (1,), (0, 1), "/data/dump_next", "2.10.0", "Ascend")
REQUEST_OF = {
    **dict.fromkeys(("mindspore", "acl", "torchair", "tensorflow"), _REQUEST),
    "msprobe": replace(_REQUEST, operators=(_CALL,)),
    **dict.fromkeys(("sglang", "te"), replace(_REQUEST, operators=(_LAYER,))),
}
