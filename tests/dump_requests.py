"""Requests for the next dump, of each system."""

from dataclasses import replace

from ingest.dump_configs.model import DumpRequest, RequestedOperator

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
