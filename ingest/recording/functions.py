"""Calls of PyTorch's functions: `torch.log(x)`, `x / y`, `F.softmax(x, -1)`, with the line of each.

A mode of `__torch_function__` sees them. Functions that a function of PyTorch calls itself are not seen: the
names are those that the program has.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ingest.recording.call_lines import CallLines
from ingest.recording.nested import io_and_slot, tensors_in
from ingest.recording.sink import Sink
from ingest.recording.torch_module import Torch
from workers.dump.model import TensorName

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
        if not self._is_active or getattr(self._paused, "now", False) or name in _NOT_COMPUTED:
            return func(*args, **kwargs)
        caller = sys._getframe(2).f_code.co_filename  # noqa: SLF001  (`inspect.stack` takes 10 ms)
        if caller.startswith(self._left_out) or self._torch.compiler.is_compiling():
            return func(*args, **kwargs)
        plain = name.strip("_") if name.startswith("__") else name
        called = ".".join((*self._modules[-1:], plain))
        op_name = f"{called}.{self._numbers[called]}"
        self._numbers[called] += 1
        op_type = f"{_family(func)}.{plain}"
        with self.paused():
            # Before the call, which may write into them.
            inputs = self._take_all(op_type, op_name, "input", args)
            inputs += self._take_all(op_type, op_name, "kwargs", kwargs)
        output = func(*args, **kwargs)
        if inputs:  # what makes a tensor of nothing is not an operator
            with self.paused():
                self._lines.note(op_name)
                written = args[0] if name == "__setitem__" else output
                self._take_all(op_type, op_name, "output", written)
        return output

    def _take_all(self, op_type: str, op_name: str, role: str, value: Any) -> int:
        """Record the tensors in a value, and return how many there are."""
        try:
            tensors = list(tensors_in(value, self._torch.Tensor))
        except Exception as exc:  # noqa: BLE001  (the code of a user's container: see `Sink.fail`)
            self._sink.fail(op_name, exc)
            return 0
        for way, tensor in tensors:
            io, slot = io_and_slot(role, way)
            self._sink.take(tensor, TensorName(op_type=op_type, op_name=op_name, io=io, slot=slot))
        return len(tensors)


def _family(func: Any) -> str:
    """Return where a function is, by msProbe's names of these places."""
    module = getattr(func, "__module__", None) or ""
    if module in ("torch.nn.functional", "torch._C._nn"):
        return "Functional"
    return "Tensor" if hasattr(func, "__objclass__") or module == "torch._tensor" else "Torch"
