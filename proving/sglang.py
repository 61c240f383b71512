"""SGLang's dumper, unmodified, on the CPU: of its own package it needs almost nothing."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ANN204, SLF001

import importlib
import importlib.metadata
import sys
from contextlib import contextmanager
from dataclasses import make_dataclass
from pathlib import Path
from types import ModuleType

from torch import distributed
from torch.optim import optimizer as optimizers

#: What the dumper imports and does not use here.
_STUBS = {
    "sglang.srt.managers": (),
    "sglang.srt.managers.io_struct": ("sock_recv", "sock_send", "wrap_as_pickle"),
    "sglang.srt.runtime_context": ("get_parallel", "get_server_args", "get_serving"),
    "sglang.srt.utils": ("get_device",),
}


def _dumper_module():
    root = Path(importlib.metadata.distribution("sglang").locate_file("sglang"))
    for name in ("sglang", "sglang.srt", "sglang.srt.debug_utils"):
        package = sys.modules.setdefault(name, ModuleType(name))
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
    for name, names in _STUBS.items():
        stub = sys.modules[name] = ModuleType(name)
        stub.__path__ = []
        vars(stub).update({name: make_dataclass(name, []) for name in names})
    return importlib.import_module("sglang.srt.debug_utils.dumper")


class Plugin:
    """Tells the dumper the place of this rank in the mesh, as that of Megatron does."""

    name = "megatron"

    def __init__(self, module, mesh):
        self.module, self.info = module, {}
        for axis in mesh.mesh_dim_names if mesh is not None else ():
            group = mesh.get_group(axis)
            self.info |= {
                f"{axis}_rank": distributed.get_rank(group),
                f"{axis}_size": distributed.get_world_size(group),
            }

    def collect_parallel_info(self):
        """Return place and size along each axis."""
        return self.info

    def __getattr__(self, name):
        if name == "core_fields":
            return frozenset
        if name == "detect_recompute_status":
            return lambda: self.module._RecomputeStatus.DISABLED
        return lambda *_, **__: None


@contextmanager
def dumped(model, directory, mesh):
    """Dump what modules take and return, parameters and gradients, in each step of an optimizer."""
    module = _dumper_module()
    module.print = lambda *_, **__: None  # of each step
    module._plugins = [Plugin(module, mesh)]
    config = module.DumperConfig(
        enable=True,
        enable_grad=True,
        enable_model_value=True,
        enable_model_grad=True,
        dir=str(directory),
        exp_name="run",
        enable_output_console=False,
        non_intrusive_mode="all",
    )
    dumper = module._Dumper(config=config)
    dumper.register_non_intrusive_dumper(model)
    before = optimizers.register_optimizer_step_pre_hook(lambda *_: dumper.dump_model(model))
    after = optimizers.register_optimizer_step_post_hook(lambda *_: dumper.step())
    yield None
    before.remove()
    after.remove()
