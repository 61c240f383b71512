"""Hooks on a model for one step: what modules take and return, gradients, parameters.

Gradients are those of outputs, taken by hooks on tensors, and those of parameters, taken when the backward
pass has ended and DistributedDataParallel or FSDP has reduced them. Full backward hooks of modules are not
used: they change the graph of autograd, and fail if an output is changed in place.
"""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from ingest.recording.call_lines import CallLines
from ingest.recording.compiled import CompiledCalls, is_compiled
from ingest.recording.functions import FunctionCalls
from ingest.recording.nested import Way, io_and_slot, tensors_in
from ingest.recording.sink import Sink
from ingest.recording.torch_module import Torch, TorchModule, TorchTensor
from workers.dump.model import TensorName

#: Modules that only wrap another one, which is their only child: it has their name.
_WRAPPER_TYPES = frozenset(
    (
        *("DistributedDataParallel", "DataParallel", "OptimizedModule", "FullyShardedDataParallel"),
        "CheckpointWrapper",
    )
)
#: The name of the outermost module, which has none of its own.
ROOT = "model"


class StepHooks:
    """The hooks of one step.

    Args:
        torch: the module.
        model: what is recorded.
        sink: takes what hooks see.
        lines: notes who calls modules.
        of: what to record: `inputs`, `outputs`, `gradients`, `parameters`.
        modules: a pattern for the names of modules, as for file names.
        functions: told in which module they are called, if they are recorded.
        inside_compiled: whether compiled modules run uncompiled, so that the modules in them can be seen.
    """

    def __init__(
        self,
        torch: Torch,
        model: TorchModule,
        sink: Sink,
        lines: CallLines,
        *,
        of: Collection[str],
        modules: str = "*",
        functions: FunctionCalls | None = None,
        inside_compiled: bool = False,
    ) -> None:
        self._torch = torch
        self._model = model
        self._sink: Sink | None = sink
        self._lines = lines
        self._of = frozenset(of)
        self._pattern = modules
        self._functions = functions
        self.names = Names(model, inside_compiled=inside_compiled)
        self._handles: list[Any] = []
        self._compiled_calls = CompiledCalls(self.before, self.after)
        self._backward_ends = False

    def attach(self) -> None:
        """Begin to record; parameters first."""
        if "parameters" in self._of:
            for name, tensor in (*self._model.named_parameters(), *self._model.named_buffers()):
                self._parameter("Parameter", name, tensor)
        for module in self.names.modules:
            # The hooks of the outermost module are those that count the steps.
            if module is self._model or isinstance(module, self._torch.jit.ScriptModule):
                continue
            if module not in self.names.compiled or not self._compiled_calls.wrap(module):
                self._handles.append(module.register_forward_pre_hook(self.before, with_kwargs=True))
                self._handles.append(
                    module.register_forward_hook(self.after, with_kwargs=True, always_call=True)
                )

    def detach(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._compiled_calls.unwrap()
        self._sink = None

    def before(self, module: TorchModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record what a module is called with."""
        if self._sink is None or self._torch.compiler.is_compiling():
            return
        graph = self._graph()
        if not graph:
            self._backward_ends = False  # one that failed has called nobody
        name = self._name_of(module)
        if name is None:
            return
        if self._functions is not None:
            self._functions.enter(name)
        self._lines.note(name, module)
        if "inputs" in self._of:
            self._take_all(module, name, "input", args, graph)
            if kwargs:
                self._take_all(module, name, "kwargs", kwargs, graph)

    def after(self, module: TorchModule, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:  # noqa: ARG002  (a forward hook)
        """Record what a module returns, and later the gradients of that."""
        if self._sink is None or self._torch.compiler.is_compiling():
            return
        name = self._name_of(module)
        if name is not None and self._functions is not None:
            self._functions.leave(name)
        graph = self._graph()
        if name is not None and "outputs" in self._of:
            self._take_all(module, name, "output", output, graph)
        if "gradients" in self._of and self._torch.is_grad_enabled():
            for way, tensor in self._tensors_in(output, name or ROOT):
                if tensor.requires_grad:
                    # Some live on: a module may return one of its parameters.
                    self._handles.append(tensor.register_hook(partial(self._gradient, name, way)))

    def _name_of(self, module: TorchModule) -> str | None:
        name = self.names.modules.get(module)
        return name if name is not None and fnmatchcase(name, self._pattern) else None

    def _take_all(self, module: TorchModule, name: str, role: str, value: Any, graph: str) -> None:
        op_type = f"Module.{_class_of(module)}"
        for way, tensor in self._tensors_in(value, name):
            io, slot = io_and_slot(role, way)
            if self._sink is not None:
                self._sink.take(tensor, TensorName("", graph, op_type, name, io, slot))

    def _tensors_in(self, value: Any, name: str) -> list[tuple[Way, TorchTensor]]:
        try:
            return list(tensors_in(value, self._torch.Tensor))
        except Exception as exc:  # noqa: BLE001  (the code of a user's container: see `Sink.fail`)
            if self._sink is not None:
                self._sink.fail(name, exc)
            return []

    def _graph(self) -> str:
        """Return whether a module runs again for the backward pass, as checkpointed ones do."""
        return "recompute" if self._torch._C._current_graph_task_id() != -1 else ""  # noqa: SLF001  (torch has no public one; FSDP uses it)

    def _gradient(self, name: str | None, way: Way, gradient: TorchTensor) -> None:
        if self._sink is None:
            return
        if not self._backward_ends:
            self._backward_ends = True
            # The reductions of DistributedDataParallel end in callbacks that are queued later than this one.
            # Callbacks that a callback queues come after them.
            engine = self._torch.autograd.Variable._execution_engine  # noqa: SLF001  (the same)
            engine.queue_callback(lambda: engine.queue_callback(self._parameter_gradients))
        if name is not None:
            label = ".".join((name, "output", *way))
            self._sink.take(gradient, TensorName("", "", "Gradient", label, "output", 0))

    def _parameter_gradients(self) -> None:
        self._backward_ends = False
        for name, parameter in self._model.named_parameters():
            if parameter.grad is not None:
                self._parameter("Gradient", name, parameter.grad)

    def _parameter(self, op_type: str, name: str, tensor: TorchTensor) -> None:
        plain = self.names.plain(name)
        if self._sink is not None and fnmatchcase(plain, self._pattern):
            self._sink.take(tensor, TensorName("", "", op_type, plain, "output", 0))


class Names:
    """The names of the modules and parameters of a model, without what wrappers add to them.

    Args:
        model: what is recorded.
        inside_compiled: whether the modules in a compiled one can be seen.
    """

    def __init__(self, model: TorchModule, *, inside_compiled: bool) -> None:
        self.modules: dict[TorchModule, str] = {}
        self.compiled: list[TorchModule] = []
        self._wrappers: set[str] = set()
        hidden: list[str] = []
        for path, module in model.named_modules():
            is_boundary = is_compiled(module) and not inside_compiled
            is_hidden = any(path.startswith(prefix) for prefix in hidden)
            if is_boundary and not is_hidden:
                hidden.append(f"{path}." if path else "")
                self.compiled.append(module)
            is_wrapper = type(module).__name__ in _WRAPPER_TYPES
            if is_wrapper:
                self._wrappers.add(path)
            if not is_hidden and (is_boundary or not is_wrapper):
                self.modules[module] = self.plain(path) or ROOT

    @property
    def compiled_names(self) -> list[str]:
        """The names of the compiled modules, of which only the outside is seen."""
        return [self.modules[module] for module in self.compiled]

    def plain(self, path: str) -> str:
        """Return the name of a module or parameter, without the parts that follow a wrapper."""
        kept = []
        above = ""
        for part in path.split("."):
            if above not in self._wrappers:
                kept.append(part)
            above = f"{above}.{part}" if above else part
        return ".".join(kept)


def _class_of(module: TorchModule) -> str:
    own: type[Any] = type(getattr(module, "_orig_mod", module))
    # `fully_shard` gives a module the class `FSDPLinear`, made of `FSDPModule` and the class that it had.
    bases = own.__bases__
    is_sharded = len(bases) == 2 and bases[0].__name__ == "FSDPModule"
    return bases[1].__name__ if is_sharded else own.__name__
