"""Runs dump systems of PyTorch: msProbe, nvdlfw-inspect, TransformerEngine, SGLang, AOTInductor.

Run by `tests/acceptance/test_torch_tools.py`. Each line of stdin names a tool and a file or directory. Its
run is a process of its own that begins with everything imported; its exit code is printed.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN002, ANN201, ANN202, ANN204

import importlib.metadata
import importlib.util
import json
import os
import shlex
import sys
from dataclasses import make_dataclass
from enum import IntEnum
from pathlib import Path
from types import ModuleType

import numpy as np
import nvdlfw_inspect.api
import torch
import torch_oracle
from msprobe.pytorch import PrecisionDebugger
from torch import nn

WIDTH, LAYERS, STEPS = 96, 8, 3


class Scores(nn.Module):
    shift = 1.0

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(WIDTH, 8)

    def forward(self, x, *, scale):
        return torch.log(torch.sigmoid(self.fc(x)) * scale + self.shift)  # the planted line


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.scores = Scores()

    def forward(self, x):
        for layer in self.stem:
            x = nn.functional.gelu(layer(x)) + x
        return self.scores(x, scale=torch.ones(8))


def msprobe(config):
    """Train a network in which a NaN is born in step 2: the logarithm of a negative number."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    debugger = PrecisionDebugger(config_path=config)
    for step in range(STEPS):
        net.scores.shift = -0.9 if step == 2 else 1.0
        debugger.start(model=net)
        loss = net(torch.randn(4, WIDTH)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        debugger.stop()
        debugger.step()


FEATURES = """
stats:
  enabled: True
  layers:
    layer_name_regex_pattern: .*
  LogTensorStats:
    enabled: True
    tensors: [activation, weight]
    stats: [min, max, mean, std, l1_norm, l2_norm]
    freq: 1
"""


def nvdlfw(directory):
    """Log statistics of two tensors in three steps, and save the tensors; the last activation has an Inf."""
    directory = Path(directory)
    (directory / "features.yaml").write_text(FEATURES)
    api = nvdlfw_inspect.api
    api.initialize(config_file=str(directory / "features.yaml"), log_dir=str(directory / "dump"))
    torch.manual_seed(0)
    for step in range(3):
        tensors = {"activation": torch.randn(4, 8), "weight": torch.randn(8, 8)}
        if step == 2:
            tensors["activation"][0, 0] = torch.inf
        for name, tensor in tensors.items():
            api.log_tensor_stats(
                layer_name="decoder.fc1", tensor_name=name, tensor=tensor, skip_reduction=True
            )
        np.savez(directory / f"{step}.npz", **{name: tensor.numpy() for name, tensor in tensors.items()})
        api.step()
    api.end_debug()


def of_sglang(name, stubs):
    """Return one file of SGLang, as the wheel has it. What it imports and does not use here is a stub."""
    for module, names in {"sglang": (), "sglang.srt": (), **stubs}.items():
        sys.modules[module] = stub = ModuleType(module)
        stub.__path__ = []
        vars(stub).update({name: make_dataclass(name, []) for name in names})
    path = importlib.metadata.distribution("sglang").locate_file(f"sglang/srt/debug_utils/{name}.py")
    spec = importlib.util.spec_from_file_location(f"sglang.srt.debug_utils.{name}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tell_truth(directory, parts=lambda value: value):
    """Write what torch itself reads from each file; see `tests.torch_truth`. `parts` is applied to it."""
    files = {
        str(path.relative_to(directory)): {
            "tensors": [
                {"shape": list(tensor.shape), "sha256": torch_oracle.digest(tensor)}
                for tensor in torch_oracle.tensors(parts(torch.load(path, weights_only=False)))
            ]
        }
        for path in directory.rglob("*.pt")
    }
    (directory / "truth.json").write_text(json.dumps({"files": files}))


def sglang_dumper(directory):
    """Train with what `dumper.env` says, or else every module, parameter and gradient dumped.

    A NaN is born in step 2.
    """
    told = Path(directory, "dumper.env")
    if told.exists():
        for line in told.read_text().splitlines():
            name, _, value = shlex.split(line)[1].partition("=")
            os.environ[name] = value
    else:
        switches = ("enable", "enable_grad", "enable_model_value", "enable_model_grad")
        os.environ |= {f"DUMPER_{name.upper()}": "1" for name in switches}
        os.environ |= {"DUMPER_DIR": f"{directory}/dump", "DUMPER_NON_INTRUSIVE_MODE": "all"}
    os.environ |= {"DUMPER_ENABLE_OUTPUT_CONSOLE": "0"}
    dumper = of_sglang(
        "dumper",
        {
            "sglang.srt.managers": (),
            "sglang.srt.managers.io_struct": ("sock_recv", "sock_send", "wrap_as_pickle"),
            "sglang.srt.runtime_context": ("get_parallel", "get_server_args", "get_serving"),
            "sglang.srt.utils": ("get_device",),
        },
    ).dumper
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    dumper.register_non_intrusive_dumper(net)
    for step in range(STEPS):
        net.scores.shift = -0.9 if step == 2 else 1.0
        loss = net(torch.randn(4, WIDTH)).square().mean()
        dumper.dump("loss", loss, dims="# dp:partial")
        optimizer.zero_grad()
        loss.backward()
        dumper.dump_model(net)
        optimizer.step()
        dumper.step()
    tell_truth(Path(directory))


def sglang_hooks(directory):
    """Run three passes of inference with the forward hooks."""
    hooks = of_sglang(
        "tensor_dump_forward_hook",
        {
            "sglang.srt.layers": (),
            "sglang.srt.layers.logits_processor": ("LogitsProcessorOutput",),
            "sglang.srt.model_executor": (),
            "sglang.srt.model_executor.forward_batch_info": ("ForwardBatch", "PPProxyTensors"),
        },
    )
    net = nn.Sequential()
    net.add_module("model", Net())
    hooks.register_forward_hook_for_model(net, f"{directory}/dump", None, tp_size=1, tp_rank=0, pp_rank=0)
    with torch.no_grad():
        for _ in range(3):
            net(torch.randn(2, WIDTH))
    tell_truth(Path(directory))


DUMPED = """
dump:
  enabled: True
  layers:
    layer_name_regex_pattern: .*
  transformer_engine:
    DumpTensors:
      enabled: True
      tensors: [activation, weight, output]
      high_precision_tensor: True
      quantized_tensor: True
"""
#: What the Python part of TransformerEngine takes from its kernels when it is imported, besides functions,
#: which are not called here. The numbers of `DType` are those of `transformer_engine.h`.
KERNEL_ENUMS = {
    "DType": {
        "kByte": 0,
        "kInt32": 2,
        "kFloat32": 4,
        "kFloat16": 5,
        "kBFloat16": 6,
        "kFloat8E4M3": 7,
        "kFloat8E5M2": 8,
        "kFloat4E2M1": 10,
    },
    "FP8FwdTensors": {f"GEMM{n}_{of}": 0 for n in (1, 2, 3) for of in ("INPUT", "WEIGHT", "OUTPUT")},
    "FP8BwdTensors": {f"GRAD_{of}{n}": 0 for n in (1, 2, 3) for of in ("INPUT", "OUTPUT")},
}


class Kernels(ModuleType):
    """In the place of the kernels of TransformerEngine, which are built for CUDA alone."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)


def of_transformer_engine():
    """Make the Python part of TransformerEngine importable; return where it is."""
    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # by which it does not look for its libraries
    root = Path(importlib.metadata.distribution("transformer-engine").locate_file("transformer_engine"))
    sys.modules["transformer_engine_torch"] = kernels = Kernels("transformer_engine_torch")
    vars(kernels).update({name: IntEnum(name, members) for name, members in KERNEL_ENUMS.items()})
    # Without their own code, which loads the kernels and imports the layers.
    for name, path in {"transformer_engine": root, "transformer_engine.pytorch": root / "pytorch"}.items():
        sys.modules[name] = package = ModuleType(name)
        package.__path__ = [str(path)]
    package.DType = importlib.import_module("transformer_engine.pytorch.constants").DType
    return root


def transformer_engine(directory):
    """Dump tensors of a layer in three steps, plain and quantised. The last output has a NaN."""
    directory = Path(directory)
    root = of_transformer_engine()
    tensor = importlib.import_module("transformer_engine.pytorch.tensor")
    e4m3 = sys.modules["transformer_engine.pytorch"].DType.kFloat8E4M3
    features = directory / "features"
    features.mkdir()
    # Alone: others of its features need more packages.
    (features / "dump_tensors.py").symlink_to(root / "debug/features/dump_tensors.py")
    (directory / "features.yaml").write_text(DUMPED)
    api = nvdlfw_inspect.api
    api.initialize(
        config_file=str(directory / "features.yaml"),
        feature_dirs=[str(features)],
        log_dir=str(directory / "dump"),
    )

    def of_bytes(*shape):
        return torch.randint(0, 120, shape, dtype=torch.uint8)

    torch.manual_seed(0)
    for step in range(3):
        like = {"dtype": torch.float32, "device": "cpu"}
        activation, weight = torch.randn(32, 64), torch.randn(128, 64)
        dumped = {
            "activation": (
                activation,
                tensor.Float8Tensor(
                    shape=activation.shape,
                    data=of_bytes(32, 64),
                    fp8_scale_inv=torch.tensor([0.5]),
                    fp8_dtype=e4m3,
                    **like,
                ),
            ),
            "weight": (
                weight,
                tensor.MXFP8Tensor(
                    shape=weight.shape,
                    rowwise_data=of_bytes(128, 64),
                    rowwise_scale_inv=of_bytes(128, 4),
                    columnwise_data=of_bytes(128, 64),
                    columnwise_scale_inv=of_bytes(4, 128),
                    fp8_dtype=e4m3,
                    quantizer=None,
                    with_gemm_swizzled_scales=False,
                    **like,
                ),
            ),
            "output": (activation @ weight.t() if step < 2 else torch.full((32, 128), torch.nan), None),
        }
        for name, (plain, quantized) in dumped.items():
            asked = {"layer_name": "decoder.fc1", "tensor_name": name, "iteration": step}
            assert api.transformer_engine.inspect_tensor_enabled(**asked)[0]
            api.transformer_engine.inspect_tensor(
                **asked, tp_group=None, tensor=plain, rowwise_quantized_tensor=quantized
            )
        api.step()
    api.end_debug()
    tell_truth(directory, lambda members: [_parts(tensor, member) for member in members.values()])


def _parts(tensor, member):
    """Return what a quantised tensor is pickled as: the arguments of the function that makes it again."""
    return member.__reduce_ex__(2)[1] if isinstance(member, tensor.QuantizedTensor) else member


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))

    def forward(self, x):
        return torch.mm(x, self.weight)


#: The printer, and what makes the compiler of C++ as quick as can be.
_COMPILER = {
    "aot_inductor.debug_intermediate_value_printer": "1",
    "compile_threads": 1,
    "cpp.simdlen": 1,
    "cpp_cache_precompile_headers": False,
    "aot_inductor.precompile_headers": False,
    "aot_inductor.compile_wrapper_opt_level": "O0",
}


def aot_inductor(directory):
    """Run a compiled product with the debug printer. Compiling takes 12 s: the result is kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dump-ingest-tests"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "inductor")
    package = cache / f"aot_inductor-{torch.__version__}-1.pt2"
    batch = torch.arange(8.0).reshape(2, 4)
    with torch.no_grad():
        if not package.exists():
            cache.mkdir(parents=True, exist_ok=True)
            own = f"{package.with_suffix('')}-{os.getpid()}.pt2"
            torch.manual_seed(0)
            exported = torch.export.export(Product(), (batch,))
            torch._inductor.aoti_compile_and_package(exported, package_path=own, inductor_configs=_COMPILER)
            Path(own).rename(package)
        Path(directory, "dump").mkdir()
        os.chdir(Path(directory, "dump"))
        product = torch._inductor.aoti_load_package(str(package))(batch)
    np.save(f"{directory}/product.npy", product.numpy())
    tell_truth(Path(directory))


TOOLS = {
    "msprobe": msprobe,
    "nvdlfw": nvdlfw,
    "transformer_engine": transformer_engine,
    "sglang_dumper": sglang_dumper,
    "sglang_hooks": sglang_hooks,
    "aot_inductor": aot_inductor,
}
for line in sys.stdin:
    tool, _, argument = line.strip().partition(" ")
    child = os.fork()
    if not child:
        os.dup2(2, 1)
        TOOLS[tool](argument)
        sys.stderr.flush()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
