"""The recorder: which steps are recorded, and what becomes of what the hooks see.

A budget decides how much of a model is looked at in a step, so that looking costs no more than a share of it.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from ingest.layouts.recorder import RecordedPlacement, RecordedStep
from ingest.recording.black_box import GRACE_S, BlackBox, BlackBoxWriter
from ingest.recording.hooks import (
    CallLines,
    FunctionCalls,
    Names,
    StepHooks,
    hook_compiled,
    io_and_slot,
    run_within,
    tensors_in,
    updated_of,
)
from ingest.recording.snapshots import (
    ROW_NBYTES,
    Camera,
    TensorSnapshot,
    Torch,
    TorchModule,
    TorchTensor,
    outside_transforms,
    placement_of,
)
from ingest.recording.triggers import save_on_sigterm
from ingest.recording.writer import (
    MARGIN_NBYTES,
    Request,
    Row,
    StepEnd,
    Writer,
    existing_steps,
    has_only_parameters,
)
from workers.arrays.compiled import kernels
from workers.dump.model import TensorName
from workers.errors import UsageError

#: The weight of the newest step in what a module is taken to cost.
_NEWEST = 0.3


class LookBudget:
    """Chooses modules in turn, as many as what was not spent so far pays for. All in the first step.

    Args:
        share: of the time of a step, without what looking costs; above 0.
        names: of all modules that may be looked at.
    """

    def __init__(self, share: float, names: Sequence[str]) -> None:
        self.names = names
        self._share = share
        self._credit_s = 0.0
        self._cost_s = 0.0
        self._at = 0
        self._looked = len(names)
        self._is_first = True

    def choose(self) -> Collection[str]:
        """Return the modules to look at in the next step."""
        if not self._is_first:
            affordable = int(self._credit_s / self._cost_s) if self._cost_s > 0 else len(self.names)
            self._looked = min(max(affordable, 0), len(self.names))
        turn = (*self.names[self._at :], *self.names[: self._at])[: self._looked]
        self._at = (self._at + self._looked) % max(len(self.names), 1)
        return frozenset(turn)

    def charge(self, spent_s: float, step_s: float) -> None:
        """Note what a step cost.

        Args:
            spent_s: processor time of looking and writing, in seconds.
            step_s: how long the step took without looking.
        """
        if self._looked:
            cost_s = spent_s / self._looked
            self._cost_s += (cost_s - self._cost_s) * (1 if self._is_first else _NEWEST)
        allowed_s = self._share * step_s
        if self._is_first:  # which also loads and compiles what looks, and is not charged
            self._is_first, self._credit_s = False, allowed_s
            return
        # Not more than pays for a module, or for two steps: a budget is not saved up for a slow step.
        most_s = max(2 * allowed_s, self._cost_s + allowed_s)
        self._credit_s = min(self._credit_s + allowed_s - spent_s, most_s)


What: TypeAlias = Literal["stats", "tensors"]
Advance: TypeAlias = Literal["forward", "optimizer", "manual"]
WhenFull: TypeAlias = Literal["wait", "leave out"]
Compiled: TypeAlias = Literal["boundary", "eager"]
_MAX_PROBLEMS = 20
#: The directories into which recorders of this process write now.
_in_use: set[Path] = set()


@dataclass(frozen=True, slots=True)
class Choice:
    """What to record."""

    steps: Collection[int] | None
    every: int
    what: What
    of: frozenset[str]
    modules: str
    advance: Advance
    first_step: int
    max_nbytes: float
    queue_nbytes: int
    when_full: WhenFull
    compiled: Compiled
    overhead: float | None = None
    """The share of a step that looking may take; None for any."""
    black_box: BlackBox | None = None

    def has(self, step: int) -> bool:
        """Return whether a step is to be recorded."""
        return (self.steps is None or step in self.steps) and step % self.every == 0

    @property
    def last(self) -> int | None:
        """The last step that may be recorded; None if there is none, -1 if no step may be."""
        if self.steps is None:
            return None
        # Of a range, not each number: `range(100, 10**9)` means all from 100 on.
        ends = (*self.steps[:1], *self.steps[-1:]) if isinstance(self.steps, range) else self.steps
        return max(ends, default=-1)


class Recorder:
    """Records a model while it is used as a context manager; see `ingest.record`, which makes it.

    Nothing that goes wrong while the model runs ends the training: the recorder stops, or leaves something
    out, and says so at the end, in `problems` and by a warning.
    """

    def __init__(self, torch: Torch, model: TorchModule, directory: Path, rank: int, choice: Choice) -> None:
        self._torch = torch
        self._model = model
        self._choice = choice
        self._last = choice.last
        self._rank = rank
        self._process = os.getpid()
        self.directory = directory
        """Where the steps of this rank are."""
        self.step: int | None = None
        """The number of the step that runs; None before the first."""
        self.recorded: list[int] = []
        """The steps that were recorded."""
        self.left_out = 0
        """How many tensors have no elements, or no line, because the ring or the queue was full."""
        self.problems: list[str] = []
        """What could not be recorded."""
        self._camera = Camera(torch, sketched=choice.black_box is not None)
        self._lines = CallLines(torch)
        self._box: BlackBoxWriter | None = None
        if choice.black_box is not None:
            self._box = BlackBoxWriter(
                directory,
                choice.queue_nbytes,
                choice.black_box,
                rank=rank,
                every=choice.every,
                fail=self.fail,
            )
        self._writer = self._box or Writer(directory, choice.queue_nbytes)
        self._holds = False
        """Whether elements of the step that runs go into the ring."""
        self._hooks: StepHooks | None = None
        self._functions: FunctionCalls | None = None
        self._budget: LookBudget | None = None
        self._looked_at: Collection[str] | None = None
        self._names: Names | None = None
        self._seen: dict[TensorName, int] = {}
        """The sequence of each tensor in the first step, if there is a budget: others have fewer tensors."""
        self._outputs: dict[str, tuple[TensorName, str, tuple[int, ...]]] = {}
        """By module: the name, element type and shape of its output, as it was seen last."""
        self.is_called = self._is_updated = False
        """Whether the model was called in this step, and an optimizer has updated it since."""
        self._updated_by: list[Any] = []
        """The optimizers that have made the update of the step."""
        self._spent_s = self._began_s = self._written_s = 0.0
        self._cost_s = self._steps_s = 0.0
        """What the recorder has cost since the second step, and how long the steps took without it."""
        self._sequence = count()
        self._was_used = self._has_rows = False
        self._left_out_before = self._problems_before = 0
        self._step_resources = ExitStack()
        self._watching = ExitStack()
        self._mode = ExitStack()
        """Apart: modes are a stack, and end where they began."""

    def __enter__(self) -> Self:
        """Begin to watch the model.

        Raises:
            UsageError: the directory cannot be written, or has one of the steps already; or the recorder was
                used before.
        """
        if self._was_used:
            raise UsageError(
                f"the recorder of {self.directory} was used before",
                hint="Call `ingest.record` again for another recording.",
            )
        self._check_directory()
        self._start_writer()
        self._was_used = True
        self._process = os.getpid()
        kernels.warm_up()
        if "functions" in self._choice.of:
            self._functions = FunctionCalls(self._torch, self, self._lines)
            self._mode.enter_context(self._functions.mode())
            for module in Names(self._model, inside_compiled=False).compiled:
                self._mode.callback(run_within(module, self._run_compiled))
        self._watch()
        if self._box is not None:
            self._mode.callback(save_on_sigterm(lambda: bool(self._request("SIGTERM").done.wait(GRACE_S))))
        _in_use.add(self.directory.resolve())
        if self._choice.advance != "forward":
            self._begin(self._choice.first_step)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._begin_after_update()
        is_failure = error is not None and getattr(error, "code", 1) not in (0, None)  # as `sys.exit` has
        if is_failure and self._box is not None and not self._is_copy:
            self._request(f"{type(error).__name__}: {error}")
        self._end("" if error is None else f"{type(error).__name__}: {error}"[:200])
        self._watching.close()
        self._mode.close()
        if self._is_copy:
            return
        self._writer.close()
        _in_use.discard(self.directory.resolve())
        self._sum_up(is_whole=error is None)
        text = f"The recording in {self.directory} is not complete: " + "; ".join(self.problems)
        if self.problems and error is not None:
            error.add_note(text)
        elif self.problems:
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _run_compiled(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run compiled code without the mode of functions, which would break its graph."""
        runs_uncompiled = self._hooks is not None and self._choice.compiled == "eager"
        if self._functions is None or runs_uncompiled:
            return call(*args, **kwargs)
        with self._functions.mode_taken_away():
            return call(*args, **kwargs)

    @property
    def _is_copy(self) -> bool:
        """Whether a fork made this process: it has no writing thread, and must not touch the queue."""
        return os.getpid() != self._process

    def _sum_up(self, *, is_whole: bool) -> None:
        """Add what is only known at the end to the problems."""
        if self._writer.failure is not None:
            self._add_problem(_failure_text(self._writer.failure))
        if self.step is None and is_whole:
            self._add_problem(
                "no call of the model was seen; record the object that you call, such as what torch.compile "
                "or DistributedDataParallel returned"
            )
        elif not self.recorded and is_whole and self._last != -1:
            self._add_problem(f"none of the steps that were asked for ran; the last one was {self.step}")
        if self.recorded and not self._has_rows:
            self._add_problem(f"modules={self._choice.modules!r} fits no name of a module or parameter")
        self.problems += self._writer.losses
        if self.left_out:
            full = "the queue" if self._box is None else "the ring or the queue"
            were = "tensor was" if self.left_out == 1 else "tensors were"
            self.problems.append(f"{self.left_out} {were} left out because {full} was full")

    def advance(self) -> None:
        """End the current step and begin the next one; only with `advance="manual"`.

        Raises:
            UsageError: the recorder counts the steps itself.
        """
        if self._choice.advance != "manual":
            raise UsageError(
                f"the recorder ends a step by itself (advance={self._choice.advance!r})",
                hint="Pass advance='manual' to `ingest.record` to tell it.",
            )
        self._next()

    def trigger(self, why: str) -> None:
        """Save what the black box holds, on all ranks: the steps before this one, this one, and some more.

        Args:
            why: a few words, which the dump repeats.

        Raises:
            UsageError: the recorder is not a black box.
        """
        if self._box is None:
            raise UsageError(
                "the recorder is not a black box: there is nothing to save",
                hint="Pass black_box=8 to `ingest.record`.",
            )
        self._request(why)

    def _request(self, why: str) -> Request:
        request = Request(self.step or 0, why)
        self._writer.queue.put(request)
        return request

    @property
    def incidents(self) -> dict[str, list[int]]:
        """The steps whose elements the black box has saved so far, by what triggered it."""
        return {} if self._box is None else dict(self._box.incidents)

    def save(self, name: str, value: Any) -> None:
        """Record what no module takes or returns, such as a loss; does nothing between recorded steps.

        Args:
            name: its name: it becomes `saved.{name}`.
            value: a tensor, or a tuple, list, dictionary or dataclass of tensors.
        """
        if self._hooks is not None:
            self._lines.note(name)
            for way, tensor in tensors_in(value, self._torch.Tensor):
                io, slot = io_and_slot("output", way)
                self.take(tensor, TensorName(op_type="saved", op_name=name, io=io, slot=slot))

    def take(self, tensor: TorchTensor, name: TensorName) -> None:
        """Record one tensor as it is now; see `Sink`."""
        self._has_rows = True
        if self._hooks is None or self._writer.failure is not None or self._is_copy:
            return
        began = time.thread_time()
        with self._functions.paused() if self._functions is not None else nullcontext():
            try:
                plain, outside = outside_transforms(tensor, self._torch)
                with outside:
                    self._take_parts(plain, name)
            except Exception as exc:  # noqa: BLE001  (see `fail`)
                self.fail(f"{name.op_type} {name.op_name} {name.io}", exc)
        self._spent_s += time.thread_time() - began

    def _take_parts(self, tensor: TorchTensor, name: TensorName) -> None:
        dtensor = placement_of(tensor)
        for way, part in self._camera.parts(tensor):
            io, slot = name.io, name.slot
            if way:
                io, slot = io_and_slot(f"{io}.{slot}", way)
            self._take_plain(part, self._placed(name._replace(io=io, slot=slot)), None if way else dtensor)

    def fail(self, what: str, exc: Exception) -> None:
        """Note what could not be recorded; see `Sink`."""
        self._add_problem(f"{what}: {type(exc).__name__}: {exc}"[:300])

    def _take_plain(self, tensor: TorchTensor, name: TensorName, dtensor: RecordedPlacement | None) -> None:
        if self._camera.is_capturing(tensor):
            self._add_problem("nothing is recorded while a CUDA graph is captured")
            return
        queue, wait = self._writer.queue, self._choice.when_full == "wait"
        step, room = self.step or 0, None
        tensor_nbytes = tensor.numel() * tensor.element_size()
        elements = (
            self._choice.what == "tensors" or self._holds
        ) and tensor_nbytes <= self._choice.max_nbytes
        nbytes = ROW_NBYTES + tensor_nbytes * elements
        if self._box is not None and elements and tensor.device.type == "cpu":
            room = self._box.ring.room(step, tensor_nbytes)
            elements, nbytes = room is not None, ROW_NBYTES
            self.left_out += room is None
        if not queue.reserve(nbytes, wait=wait):
            has_room = queue.reserve(ROW_NBYTES, margin_nbytes=MARGIN_NBYTES)
            self.left_out += elements or not has_room
            if not has_room:
                return
            elements, nbytes, room = False, ROW_NBYTES, None
        into, place = room or (None, None)
        try:
            snapshot = self._camera.take(tensor, elements=elements, into=into)
        except BaseException:
            queue.release(nbytes)
            raise
        queue.put(Row(step, name, snapshot, nbytes, dtensor, place))
        if (
            self._budget is not None
            and (name.io, name.slot) == ("output", 0)
            and name.op_type[:6] == "Module"
        ):
            self._outputs[name.op_name] = name, snapshot.dtype, snapshot.shape

    def _check_directory(self) -> None:
        hint = "Record into another directory, or remove those steps first."
        if self.directory.resolve() in _in_use:
            raise UsageError(f"another recorder of this process writes to {self.directory}", hint=hint)
        try:
            existing = sorted(filter(self._choice.has, existing_steps(self.directory)))
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as exc:
            raise UsageError(
                f"{self.directory} cannot be written: {exc.strerror or exc}",
                hint="The recorder writes below the directory that `ingest.record` names: give it one.",
            ) from exc
        first = self._choice.first_step
        existing = [step for step in existing if step >= first]
        if existing == [first] and has_only_parameters(self.directory / f"step_{first}"):
            # The job that ended at this checkpoint began the step, and saw what its last update made.
            self._writer.resumed = first
        elif existing and self._box is None:
            raise UsageError(
                f"{self.directory} already has step {existing[0]} of rank {self._rank}", hint=hint
            )

    def _start_writer(self) -> None:
        try:
            self._writer.start()
        except BlockingIOError as exc:
            raise UsageError(
                f"another process records rank {self._rank} into {self.directory.parent}",
                hint="Give each run a directory of its own, and each process its RANK.",
            ) from exc
        except OSError as exc:
            raise UsageError(
                f"the black box cannot begin: {exc}", hint="Give it directories that it may write."
            ) from exc

    def _watch(self) -> None:
        """Add the hooks that count the steps, which are also those of the outermost module."""
        unwrap = hook_compiled(self._model, self._before_model, self._after_model)
        if unwrap is not None:
            self._watching.callback(unwrap)
        else:
            # First of all hooks: FSDP puts the shards of parameters together before a call.
            begin = self._model.register_forward_pre_hook(self._begin_call, prepend=True, with_kwargs=True)
            before = self._model.register_forward_pre_hook(self._take_call, with_kwargs=True)
            after = self._model.register_forward_hook(self._after_model, with_kwargs=True, always_call=True)
            for handle in (begin, before, after):
                self._watching.callback(handle.remove)
        optimizers = import_module("torch.optim.optimizer")
        if "gradients" in self._choice.of:
            hook = optimizers.register_optimizer_step_pre_hook(self._before_optimizer)
            self._watching.callback(hook.remove)
        if self._choice.advance == "optimizer":
            hook = optimizers.register_optimizer_step_post_hook(
                self._after_optimizer(updated_of(self._model))
            )
            self._watching.callback(hook.remove)

    def _before_model(self, module: TorchModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._begin_call(module, args, kwargs)
        self._take_call(module, args, kwargs)

    def _begin_call(self, module: TorchModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002  (a hook)
        torch = self._torch
        if torch.compiler.is_compiling():
            return
        # In a backward pass, a checkpoint runs the model again: that does not begin a step.
        is_again = torch._C._current_graph_task_id() != -1  # noqa: SLF001  (torch has no public one)
        if (self._choice.advance == "forward" or self._is_updated) and not is_again:
            self._next()
        self.is_called = True
        if self._hooks is not None:
            self._hooks.take_parameters()

    def _take_call(
        self, module: TorchModule, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> None:
        # Torch calls a hook that the one before it has removed without the keyword arguments.
        if self._hooks is not None and kwargs is not None:
            self._hooks.before(module, args, kwargs)

    def _before_part(self, module: TorchModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin a step if a part of the model is called by itself after an update."""
        if self._is_updated:
            self._begin_call(module, args, kwargs)
        self._take_call(module, args, kwargs)

    def _after_model(
        self, module: TorchModule, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if self._hooks is not None:
            self._hooks.after(module, args, kwargs, output)

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002  (as torch calls it)
        if self._hooks is not None:
            self._hooks.take_gradients(each for group in optimizer.param_groups for each in group["params"])

    def _after_optimizer(self, own: set[int]) -> Callable[..., None]:
        def after(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001  (as torch calls it)
            groups = optimizer.param_groups
            if not any(id(parameter) in own for group in groups for parameter in group["params"]):
                return
            # Several optimizers may have a part each of one update, and one may call another: the next call
            # of the model begins a step. Of a model whose parts are called by themselves, each update does.
            if optimizer in self._updated_by:  # nobody looked at the parts that were called since
                self._next()
            self._updated_by.append(optimizer)
            self._is_updated = self.is_called
            if not self.is_called:
                self._next()

        return after

    def _begin_after_update(self) -> None:
        if self._is_updated:  # and nothing has called the model since: a step for what the update made
            self._next()

    def _next(self) -> None:
        began = time.thread_time()
        self.is_called = self._is_updated = False
        self._updated_by.clear()
        self._end("")
        try:
            self._begin(self._choice.first_step if self.step is None else self.step + 1)
        except Exception as exc:  # noqa: BLE001  (see `fail`)
            self.fail(f"step {self.step}", exc)
        self._spent_s = time.thread_time() - began

    @property
    def overhead(self) -> float:
        """What the recorder has cost since the second step, as a share of the steps."""
        return self._cost_s / self._steps_s if self._steps_s else 0.0

    def _look(self) -> None:
        """Choose what to look at in the step that begins, by what the one before has cost."""
        now, written = time.perf_counter(), self._writer.processor_s
        cost_s = self._spent_s + written - self._written_s
        step_s = max(now - self._began_s - self._spent_s, 0.0)
        self._began_s, self._written_s = now, written
        if len(self.recorded) > 1:  # the first one also loads and compiles what looks
            self._cost_s, self._steps_s = self._cost_s + cost_s, self._steps_s + step_s
        if self._choice.overhead is None:
            return
        if self._budget is None:
            self._names = Names(self._model, inside_compiled=self._choice.compiled == "eager")
            names = (name for name in self._names.modules.values() if fnmatchcase(name, self._choice.modules))
            self._budget = LookBudget(self._choice.overhead, list(names))
        else:
            self._budget.charge(cost_s, step_s)
        self._looked_at = self._budget.choose()

    def _say_what_was_left_out(self) -> int:
        """Add a line without statistics for each module that was not looked at; return how many."""
        if self._looked_at is None or self._budget is None:
            return 0
        left_out = [name for name in self._budget.names if name not in self._looked_at]
        for name in left_out:
            if name in self._outputs and self._writer.queue.reserve(ROW_NBYTES, margin_nbytes=MARGIN_NBYTES):
                tensor, dtype, shape = self._outputs[name]
                self._writer.queue.put(
                    Row(self.step or 0, tensor, TensorSnapshot(dtype, shape, 0), ROW_NBYTES)
                )
        return len(left_out)

    def _placed(self, name: TensorName) -> TensorName:
        """Return a name with its place in the order of execution: with a budget, that of the first step."""
        number = next(self._sequence)
        if self._budget is None:
            return name._replace(sequence=number)
        return name._replace(sequence=self._seen.setdefault(name, number))

    def _begin(self, step: int) -> None:
        self.step = step
        if self._last is not None and step > self._last:
            self._watching.close()
            return
        if not self._choice.has(step) or self._writer.failure is not None or self._is_copy:
            return
        self._sequence = count()
        self._holds = self._box is not None and self._box.may_save(step)
        self._left_out_before, self._problems_before = self.left_out, len(self.problems)
        is_eager = self._choice.compiled == "eager"
        self._look()
        hooks = StepHooks(
            self._torch,
            self._model,
            self,
            self._lines,
            of=self._choice.of,
            modules=self._choice.modules,
            functions=self._functions,
            inside_compiled=is_eager,
            looked_at=self._looked_at,
            names=self._names,
        )
        if is_eager:
            self._step_resources.enter_context(self._torch.compiler.set_stance("force_eager"))
        self._say_what_is_compiled(hooks.names)
        self._hooks = hooks
        if self._functions is not None:
            self._functions.begin()
        hooks.attach(self._before_part)
        self.recorded.append(step)

    def _say_what_is_compiled(self, names: Names) -> None:
        compiled = [names.modules[module] for module in names.compiled]
        if compiled:
            more = " and others" if compiled[3:] else ""
            self._add_problem(
                f"{', '.join(compiled[:3])}{more}: compiled, so nothing inside is recorded; with "
                "compiled='eager', they run uncompiled in the steps that are recorded"
            )

    def _end(self, ended: str) -> None:
        hooks = self._hooks
        if hooks is None or self.step is None:
            return
        hooks.take_parameters()  # of a step in which nothing was called
        self._hooks = None
        hooks.detach()
        if self._functions is not None:
            self._functions.end()
        self._step_resources.close()
        if self._is_copy:
            return
        mark = RecordedStep(
            tensors=0,
            ended=ended,
            left_out=self.left_out - self._left_out_before,
            problems=tuple(self.problems[self._problems_before :]),
            not_looked_at=self._say_what_was_left_out(),
            overhead=None if self._budget is None else round(self.overhead, 4),
        )
        self._writer.queue.put(StepEnd(self.step, mark, self._lines.to_json, self.overhead))

    def _add_problem(self, problem: str) -> None:
        if problem not in self.problems and len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem)


def _failure_text(failure: BaseException) -> str:
    if isinstance(failure, FileExistsError):
        return (
            f"{failure.filename} exists: another process records there, too; give each a directory of "
            "its own, or its RANK"
        )
    return f"writing failed, and the rest was left out: {failure}"
