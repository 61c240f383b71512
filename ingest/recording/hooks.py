"""Hooks on a model for one step: what modules take and return, gradients, parameters.

Gradients are those of outputs, taken by hooks on tensors, and those of parameters, taken when the backward
pass has ended and DistributedDataParallel or FSDP has reduced them. Full backward hooks of modules are not
used: they change the graph of autograd, and fail if an output is changed in place.
"""

from __future__ import annotations

import linecache
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, Protocol

import msgspec

from ingest.recording.snapshots import Torch, TorchModule, TorchTensor
from workers.dump.model import TensorName

#: How deep values may be nested, and how many tensors of one value are recorded.
_MAX_DEPTH = 8
_MAX_TENSORS = 4096
#: Characters of a key that become part of a name.
_MAX_KEY = 80

Way = tuple[str, ...]


def tensors_in(value: Any, tensor_type: type) -> Iterator[tuple[Way, Any]]:
    """Yield the tensors in a value, each with the keys and indices that lead to it.

    Tuples, lists, mappings (also those of Transformers), named tuples and dataclasses are looked into; other
    objects are not. At most 4096 tensors, and those at most eight levels deep.

    Args:
        value: what a module takes or returns.
        tensor_type: `torch.Tensor`.
    """
    yield from islice(_walk(value, tensor_type, ()), _MAX_TENSORS)


def _walk(value: Any, tensor_type: type, way: Way) -> Iterator[tuple[Way, Any]]:
    if isinstance(value, tensor_type):
        yield way, value
    elif len(way) < _MAX_DEPTH:
        for key, below in _below(value):
            yield from _walk(below, tensor_type, (*way, str(key)[:_MAX_KEY]))


def _below(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, list | tuple):
        yield from enumerate(value)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((field.name, getattr(value, field.name, None)) for field in fields(value))


def io_and_slot(role: str, way: Way) -> tuple[str, int]:
    """Return the label and the number of a tensor, as those of msProbe.

    >>> io_and_slot("output", ()), io_and_slot("input", ("1", "0")), io_and_slot("output", ("logits",))
    (('output', 0), ('input.1', 0), ('output.logits', 0))
    """
    if not way:
        return role, 0
    if way[-1].isascii() and way[-1].isdecimal() and len(way[-1]) < 10:
        return ".".join((role, *way[:-1])), int(way[-1])
    return ".".join((role, *way)), 0


#: Frames of one stack, from the innermost one on.
_MAX_FRAMES = 40
_OWN_DIRECTORY = str(Path(__file__).parent)

_Place = tuple[CodeType, int]


class CallLines:
    """Who called what, by the names of operators: the first call of each.

    Args:
        torch: the module. Its own frames are left out.
    """

    def __init__(self, torch: Torch) -> None:
        self._stacks: dict[str, tuple[_Place, ...]] = {}
        self._left_out = (_OWN_DIRECTORY, str(Path(torch.__file__).parent))
        self._is_kept: dict[CodeType, bool] = {}

    def note(self, name: str, module: TorchModule | None = None) -> None:
        """Note who calls a module or a function now; a second time does nothing.

        The stack ends with the `forward` of the module, so that it names the code that runs in the call.
        """
        if name in self._stacks:
            return
        places: list[_Place] = []
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  (`inspect.stack` takes 10 ms)
        while frame is not None and len(places) < _MAX_FRAMES:
            if self._keeps(frame.f_code):
                places.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        forward = getattr(getattr(type(module), "forward", None), "__code__", None)
        if isinstance(forward, CodeType) and self._keeps(forward):
            places.insert(0, (forward, forward.co_firstlineno))
        self._stacks[name] = tuple(places)

    def _keeps(self, code: CodeType) -> bool:
        kept = self._is_kept.get(code)
        if kept is None:
            kept = self._is_kept[code] = not code.co_filename.startswith(self._left_out)
        return kept

    def to_json(self) -> bytes:
        """Return all stacks; see `stacks_to_json`."""
        return stacks_to_json(
            {
                name: [(code.co_filename, line, code.co_name) for code, line in places]
                for name, places in tuple(self._stacks.items())
            }
        )


def stacks_to_json(stacks: Mapping[str, Iterable[tuple[str, int, str]]]) -> bytes:
    """Return stacks in the form of msProbe's `stack.json`, innermost line first.

    Args:
        stacks: by the name of a call: file, line and function.
    """
    return msgspec.json.encode(
        {
            name: [
                f"File {file}, line {line}, in {function}, \n {linecache.getline(file, line).strip()}"
                for file, line, function in places
            ]
            for name, places in stacks.items()
        }
    )


class Sink(Protocol):
    """Takes what hooks see."""

    def take(self, tensor: TorchTensor, name: TensorName) -> None:
        """Record a tensor as it is now; its `sequence` is not known yet."""

    def fail(self, what: str, exc: Exception) -> None:
        """Note what could not be recorded: a recorder must not end a training."""


def _tensors_in(value: Any, name: str, torch: Torch, sink: Sink | None) -> list[tuple[Way, TorchTensor]]:
    try:
        return list(tensors_in(value, torch.Tensor))
    except Exception as exc:  # noqa: BLE001  (the code of a user's container: see `Sink.fail`)
        if sink is not None:
            sink.fail(name, exc)
        return []


_ATTRIBUTE = "_compiled_call_impl"


def is_compiled(module: TorchModule) -> bool:
    """Return whether a module is compiled, by either way."""
    return type(module).__name__ == "OptimizedModule" or getattr(module, _ATTRIBUTE, None) is not None


def run_within(
    module: TorchModule, run: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
) -> Callable[[], None]:
    """Have a function run the compiled code of a module from now on; return what ends that."""
    attribute = "forward" if type(module).__name__ == "OptimizedModule" else _ATTRIBUTE
    call = getattr(module, attribute)
    object.__setattr__(module, attribute, lambda *args, **kwargs: run(call, args, kwargs))
    return lambda: object.__setattr__(module, attribute, call)


def hook_compiled(
    module: TorchModule, before: Callable[..., Any], after: Callable[..., Any]
) -> Callable[[], None] | None:
    """Add hooks to a module that is compiled by `module.compile()`; None for any other module.

    Args:
        module: the module.
        before, after: as forward hooks with keyword arguments are called.

    Returns:
        What removes them.
    """
    if getattr(module, _ATTRIBUTE, None) is None or type(module).__name__ == "OptimizedModule":
        return None

    def run(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before(module, args, kwargs)
        output = call(*args, **kwargs)
        after(module, args, kwargs, output)
        return output

    return run_within(module, run)


#: Questions about a tensor, changes of its attributes, and memory that holds anything: they compute nothing.
_NOT_COMPUTED = frozenset(
    (
        *("__get__", "__set__", "__delete__", "__len__", "__bool__", "__repr__", "__format__", "size", "dim"),
        *("stride", "numel", "is_floating_point", "is_complex", "register_hook", "backward", "detach"),
        *(
            "empty_like",
            "new_empty",
            "new_empty_strided",
            "resize_",
            "resize_as_",
            "requires_grad_",
            "item",
            "tolist",
            "numpy",
            "data_ptr",
        ),
    )
)


class FunctionCalls:
    """Records what functions take and return, in the thread that made it.

    Args:
        torch: the module.
        sink: takes what is seen.
        lines: notes who calls functions.
    """

    def __init__(self, torch: Torch, sink: Sink, lines: CallLines) -> None:
        self._torch = torch
        self._sink = sink
        self._lines = lines
        self._modules: list[str] = []
        self._numbers: Counter[str] = Counter()
        self._is_active = False
        self._paused = threading.local()
        self._mode: Any = None
        # What optimizers and the scaling of losses call is not the code of the model.
        self._left_out = tuple(str(Path(torch.__file__).parent / name) for name in ("optim", "amp"))

    def begin(self) -> None:
        """Begin to record, with a new step."""
        self._modules.clear()
        self._numbers.clear()
        self._is_active = True

    def end(self) -> None:
        """Stop recording."""
        self._is_active = False

    def enter(self, module: str) -> None:
        """Note that functions belong to a module from now on."""
        self._modules.append(module)

    def leave(self, module: str) -> None:
        """Note that a module has returned, or raised."""
        while module in self._modules and self._modules.pop() != module:
            pass

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not look at what this thread calls: it is the recorder itself."""
        before = getattr(self._paused, "now", False)
        self._paused.now = True
        try:
            yield
        finally:
            self._paused.now = before

    def mode(self) -> Any:
        """Return the mode to enter."""
        calls = self
        base: Any = self._torch.overrides.TorchFunctionMode

        class _Mode(base):  # type: ignore[misc]  # a class of torch
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                del types
                return calls.call(func, args, kwargs or {})

        self._mode = _Mode()
        return self._mode

    def mode_taken_away(self) -> AbstractContextManager[Any]:
        """Return a context in which the mode is not there, for what this thread calls."""
        overrides = self._torch.overrides
        if self._mode is None or overrides._get_current_function_mode() is not self._mode:  # noqa: SLF001  (torch has no public one)
            return nullcontext()
        taken: AbstractContextManager[Any] = overrides._pop_mode_temporarily()  # noqa: SLF001  (the same)
        return taken

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of PyTorch, and record what it takes and returns."""
        name = getattr(func, "__name__", "")
        if self._is_left_out(name):
            return func(*args, **kwargs)
        plain = name.strip("_") if name.startswith("__") else name
        called = ".".join((*self._modules[-1:], plain))
        op_name = f"{called}.{self._numbers[called]}"
        self._numbers[called] += 1
        op_type = f"{_family(func)}.{plain}"
        read, named, destination = _without_destination(func, name, args, kwargs)
        with self.paused():
            # Before the call, which may write into them.
            inputs = self._take_all(op_type, op_name, "input", read)
            inputs += self._take_all(op_type, op_name, "kwargs", named)
        output = func(*args, **kwargs)
        if inputs or destination is not None:  # what makes a tensor of nothing is not an operator
            with self.paused():
                self._lines.note(op_name)
                written = output if destination is None else destination
                if _is_in_flight(func, name, kwargs, destination):
                    written = {"elem": written}  # as in an `AsyncCollectiveTensor`: nobody has awaited it yet
                self._take_all(op_type, op_name, "output", written)
        return output

    def _is_left_out(self, name: str) -> bool:
        """Return whether a function is not recorded, by its name or by who calls `call`."""
        if not self._is_active or getattr(self._paused, "now", False) or name in _NOT_COMPUTED:
            return True
        caller = sys._getframe(3).f_code.co_filename  # noqa: SLF001  (`inspect.stack` takes 10 ms)
        return caller.startswith(self._left_out) or bool(self._torch.compiler.is_compiling())

    def _take_all(self, op_type: str, op_name: str, role: str, value: Any) -> int:
        tensors = _tensors_in(value, op_name, self._torch, self._sink)
        for way, tensor in tensors:
            io, slot = io_and_slot(role, way)
            self._sink.take(tensor, TensorName("", "", op_type, op_name, io, slot))
        return len(tensors)


#: Where collectives are told to write to: by position, and by name.
_DESTINATIONS = {
    "all_gather": (0, "tensor_list"),
    "all_gather_into_tensor": (0, "output_tensor"),
    "all_gather_single": (0, "output_tensor"),
    "reduce_scatter": (0, "output"),
    "reduce_scatter_tensor": (0, "output"),
    "reduce_scatter_single": (0, "output"),
    "all_to_all": (0, "output_tensor_list"),
    "all_to_all_single": (0, "output"),
    "gather": (1, "gather_list"),
    "scatter": (0, "tensor"),
    "recv": (0, "tensor"),
    "irecv": (0, "tensor"),
}


def _without_destination(
    func: Any, called: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Return what a function reads, and the memory that it is told to write to.

    Of a collective, nobody has written that yet.
    """
    if called == "__setitem__":
        return args, kwargs, args[0]
    is_collective = (getattr(func, "__module__", None) or "").startswith("torch.distributed")
    place, name = _DESTINATIONS.get(called, (0, "")) if is_collective else (0, "")
    if name in kwargs:
        return args, {key: value for key, value in kwargs.items() if key != name}, kwargs[name]
    if not name or place >= len(args):
        return args, kwargs, None
    return args[:place] + args[place + 1 :], kwargs, args[place]


def _is_in_flight(func: Any, called: str, kwargs: dict[str, Any], destination: Any) -> bool:
    """Return whether a collective returns before it has written its output."""
    package, _, operator = str(func).partition(".")
    is_functional = package == "_c10d_functional" and not operator.startswith("wait_tensor")
    is_async = bool(kwargs.get("async_op")) or called == "irecv"
    return is_functional or (destination is not None and is_async)


def _family(func: Any) -> str:
    """Return where a function is, by msProbe's names of these places."""
    module = getattr(func, "__module__", None) or ""
    if module in ("torch.nn.functional", "torch._C._nn"):
        return "Functional"
    return "Tensor" if hasattr(func, "__objclass__") or module == "torch._tensor" else "Torch"


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
        looked_at: the names of the modules to look at; None for all.
        names: those of the model, if they are known: to find them takes a while.
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
        looked_at: Collection[str] | None = None,
        names: Names | None = None,
    ) -> None:
        self._torch = torch
        self._model = model
        self._looked_at = looked_at
        self._sink: Sink | None = sink
        self._lines = lines
        self._of = frozenset(of)
        self._pattern = modules
        self._functions = functions
        self.names = names or Names(model, inside_compiled=inside_compiled)
        self._at_end: list[Callable[[], object]] = []
        self._backward_ends = False
        self._graded: set[int] = set()
        """The parameters whose gradient a backward pass of the step has left."""
        self._gradients_seen = {
            id(each): _GradientSeen.of(each.grad) for each in model.parameters() if each.grad is not None
        }
        """By parameter, what was last seen of its gradient: a pass that does not reach it leaves that."""
        self._awaits_parameters = "parameters" in self._of

    def attach(self, before: Callable[..., None]) -> None:
        """Begin to record; `before`, which calls that of this, is told of each module but the outermost."""
        for module in self.names.modules:
            # The hooks of the outermost module are those that count the steps.
            if module is self._model or isinstance(module, self._torch.jit.ScriptModule):
                continue
            if self._looked_at is not None and self._name_of(module) is None:
                continue
            is_boundary = module in self.names.compiled
            unwrap = hook_compiled(module, before, self.after) if is_boundary else None
            if unwrap is not None:
                self._at_end.append(unwrap)
                continue
            handles = (
                module.register_forward_pre_hook(before, with_kwargs=True),
                module.register_forward_hook(self.after, with_kwargs=True, always_call=True),
            )
            self._at_end += [handle.remove for handle in handles]
        if "gradients" in self._of:
            self._await_loose_parameters()

    def _await_loose_parameters(self) -> None:
        """See the backward passes of what no inner module returns, as of a temperature of the model.

        A pass through what a module returns is seen there.
        """
        for module in self._model.modules():
            own = module.parameters(recurse=False) if any(module.children()) else ()
            for parameter in own:
                if parameter.requires_grad and parameter.is_leaf:
                    self._at_end.append(parameter.register_hook(partial(self._gradient, None, ())).remove)

    def take_parameters(self) -> None:
        """Record parameters and buffers, once: as late as when the first module is called.

        A step that begins when the optimizer ends is not one yet for them: they may be sent to other ranks
        (ZeRO), clamped, or replaced by an average first.
        """
        if self._awaits_parameters:
            self._awaits_parameters = False
            for name, tensor in (*self._model.named_parameters(), *self._model.named_buffers()):
                self._parameter("Parameter", name, tensor)

    def detach(self) -> None:
        """Remove all hooks."""
        for remove in self._at_end:
            remove()
        self._sink = None

    def before(self, module: TorchModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record what a module is called with."""
        if self._sink is None or self._torch.compiler.is_compiling():
            return
        self.take_parameters()
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
            self._await_gradients(name, output)

    def _await_gradients(self, name: str | None, output: Any) -> None:
        for way, tensor in _tensors_in(output, name or ROOT, self._torch, self._sink):
            if tensor.requires_grad:
                # Some live on: a module may return one of its parameters.
                self._at_end.append(tensor.register_hook(partial(self._gradient, name, way)).remove)

    def _name_of(self, module: TorchModule) -> str | None:
        name = self.names.modules.get(module)
        return name if name is not None and self._is_wanted(name, name) else None

    def _is_wanted(self, name: str, module: str) -> bool:
        return (self._looked_at is None or module in self._looked_at) and fnmatchcase(name, self._pattern)

    def _take_all(self, module: TorchModule, name: str, role: str, value: Any, graph: str) -> None:
        op_type, sink = f"Module.{_class_of(module)}", self._sink
        if sink is None:
            return
        for way, tensor in _tensors_in(value, name, self._torch, sink):
            io, slot = io_and_slot(role, way)
            sink.take(tensor, TensorName("", graph, op_type, name, io, slot))

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
            gradient, seen = parameter.grad, self._gradients_seen.get(id(parameter))
            if gradient is not None and not (seen is not None and seen.is_still(gradient)):
                self._graded.add(id(parameter))
                self._gradients_seen[id(parameter)] = _GradientSeen.of(gradient)
                self._parameter("Gradient", name, gradient)

    def take_gradients(self, updated: Iterable[TorchTensor]) -> None:
        """Record the gradients of parameters that are about to be updated, and that no backward pass left.

        Code that combines gradients of several losses sets them by hand.
        """
        wanted = {id(parameter) for parameter in updated} - self._graded
        for name, parameter in self._model.named_parameters():
            main = _main_of(parameter)
            if id(main) in wanted and main.grad is not None:
                self._parameter("Gradient", name, main.grad)

    def _parameter(self, op_type: str, name: str, tensor: TorchTensor) -> None:
        plain = self.names.plain(name)
        if self._sink is not None and self._is_wanted(plain, plain.rpartition(".")[0] or ROOT):
            self._sink.take(tensor, TensorName("", "", op_type, plain, "output", 0))


def updated_of(model: TorchModule) -> set[int]:
    """Return by `id` what an optimizer updates of a model."""
    return {id(_main_of(parameter)) for parameter in model.parameters()}


def _main_of(parameter: TorchTensor) -> TorchTensor:
    """Return a parameter; of Megatron-LM in half precision, the copy, or shard of it, that is updated."""
    main = getattr(parameter, "main_param", None)
    return parameter if main is None else main


class _GradientSeen(NamedTuple):
    """A gradient that was looked at, and how often it, or the shard in it, had been written then."""

    tensor: weakref.ref[TorchTensor]
    writes: tuple[int, int]

    @classmethod
    def of(cls, gradient: TorchTensor) -> _GradientSeen:
        return cls(weakref.ref(gradient), _writes(gradient))

    def is_still(self, gradient: TorchTensor) -> bool:
        """Return whether nobody has written it since."""
        return self.tensor() is gradient and self.writes == _writes(gradient)


def _writes(gradient: TorchTensor) -> tuple[int, int]:
    local: TorchTensor = getattr(gradient, "_local_tensor", gradient)
    return gradient._version, local._version  # noqa: SLF001  (torch has no public ones)


class Names:
    """The names of the modules and parameters of a model, without what wrappers add to them.

    Args:
        model: what is recorded.
        inside_compiled: whether the modules in a compiled one can be seen.
    """

    def __init__(self, model: TorchModule, *, inside_compiled: bool) -> None:
        self.modules: dict[TorchModule, str] = {}
        self.compiled: list[TorchModule] = []
        """Those of which only the outside is seen."""
        self._wrappers: set[str] = set()
        hidden: tuple[str, ...] = ()
        for path, module in model.named_modules():
            is_boundary = is_compiled(module) and not inside_compiled
            is_hidden = path.startswith(hidden)
            if is_boundary and not is_hidden:
                hidden += (f"{path}.".lstrip("."),)
                self.compiled.append(module)
            is_wrapper = type(module).__name__ in _WRAPPER_TYPES
            if is_wrapper:
                self._wrappers.add(path)
            if not is_hidden and (is_boundary or not is_wrapper):
                self.modules[module] = self.plain(path) or ROOT

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
    # `fully_shard` gives a module the class `FSDPLinear`, made of `FSDPModule` and the class that it had;
    # `parametrize` gives it `ParametrizedLinear`.
    *others, last = own.__bases__
    is_sharded = [each.__name__ for each in others] == ["FSDPModule"]
    is_made = is_sharded or own.__name__ == f"Parametrized{last.__name__}"
    return last.__name__ if is_made else own.__name__
