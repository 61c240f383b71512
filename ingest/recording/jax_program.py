"""A recorder for JAX: evaluates the program that JAX has traced, one equation at a time, on the real devices.

What a program computes inside of `jit`, `scan` and `shard_map` is not to be seen from outside. So the traced
program is run again by its equations: bodies of `jit` and of functions with derivatives of their own are
evaluated in place, those of loops once for each turn, and those of `shard_map` on all devices at once, by a
`shard_map` for each equation. Each device is a rank; arrays have the shardings that JAX gives them.

JAX is an optional dependency: it is imported when something is recorded.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ingest.layouts.recorder import DIRECTORY, RecordedStep
from ingest.recording.hooks import io_and_slot, stacks_to_json
from ingest.recording.recorder import What
from ingest.recording.snapshots import jax_placement_of, snapshot_of
from ingest.recording.writer import MAX_FILE_NBYTES, StepFiles
from workers.dump.model import TensorName
from workers.errors import UsageError

#: Values of JAX, which is not installed where types are checked.
Jax: TypeAlias = Any
Value: TypeAlias = Any
Program: TypeAlias = Any
Equation: TypeAlias = Any

#: Equations that stand for the program in them, by the parameter that has it.
_INLINE = {
    **dict.fromkeys(("jit", "pjit", "checkpoint"), "jaxpr"),
    **dict.fromkeys(("closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"), "call_jaxpr"),
}
#: What JAX calls operators that are known by other names.
_NAMES = {"psum": "all_reduce", "psum_invariant": "all_reduce", "pmax": "all_reduce_max"}


def record_jax(
    function: Callable[..., Any],
    directory: str | Path,
    *,
    what: What = "stats",
    steps: Container[int] | None = None,
    first_step: int = 0,
) -> Callable[..., Any]:
    """Return a function that computes the same with JAX, and records each call of it as a step.

    A recorded call takes much longer than compiled code, and may round differently. Where devices of a
    `shard_map` take different branches or turns, and in one over some axes of a mesh only, its equations are
    recorded as a whole. The files are complete when the call returns. Memory: all results in a body, and 64
    MiB for each device.

    Args:
        function: what JAX can trace, such as a step of training, also under `jit`. Its arguments are arrays,
            and containers of arrays.
        directory: where the dump goes, as for `ingest.record`.
        what: `stats` for statistics only, `tensors` for elements, too.
        steps: the calls to record; others run as ever. All if None.
        first_step: the number of the first call.

    Raises:
        UsageError: JAX is not installed; in a call, also if the directory has its step already.
    """
    try:
        import jax  # deferred: optional, and takes 2 s
    except ImportError as exc:
        hint = "pip install 'dump-ingest[jax]'"
        raise UsageError("the recorder needs JAX, which is not installed", hint=hint) from exc
    numbers = count(first_step)

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        step = next(numbers)
        if steps is not None and step not in steps:
            return function(*args, **kwargs)
        traced, shape = jax.make_jaxpr(function, return_shape=True)(*args, **kwargs)
        files = _RankFiles(jax, Path(directory) / DIRECTORY, step, elements=what == "tensors")
        evaluation = _Evaluation(jax, files, _mesh_of(jax, traced, (args, kwargs)))
        module = f"Module.{getattr(function, '__name__', 'function')}"
        given = inspect.signature(function).bind(*args, **kwargs).arguments
        for keys, leaf in jax.tree_util.tree_leaves_with_path(given):
            name = jax.tree_util.keystr(keys, simple=True, separator=".")
            files.take("Parameter", name, "output", leaf)
        leaves, tree = jax.tree_util.tree_leaves((args, kwargs)), jax.tree_util.tree_structure(shape)
        result = jax.tree_util.tree_unflatten(tree, evaluation.run(traced.jaxpr, traced.consts, leaves))
        files.take(module, "model", "output", result)
        files.finish()
        return result

    return recorded


def _mesh_of(jax: Jax, program: Program, arguments: Any) -> Any | None:
    """Return the mesh of devices on which a program runs, by its arguments or its `shard_map`."""
    shardings = (getattr(leaf, "sharding", None) for leaf in jax.tree_util.tree_leaves(arguments))
    meshes = (getattr(sharding, "mesh", None) for sharding in shardings)
    of_equations = (equation.params.get("mesh") for equation in _equations(program))
    known = (mesh for found in (meshes, of_equations) for mesh in found)
    return next((mesh for mesh in known if isinstance(mesh, jax.sharding.Mesh) and mesh.size > 1), None)


def _equations(program: Program) -> Iterator[Equation]:
    """Yield the equations of a program, and of all programs in them."""
    for equation in program.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple) else (value,):
                if hasattr(inner, "eqns"):
                    yield from _equations(inner)


class _RankFiles:
    """The files of one step, of all devices; see `ingest.layouts.recorder`."""

    def __init__(self, jax: Jax, directory: Path, step: int, *, elements: bool) -> None:
        self._jax = jax
        self._directory = directory
        self._step = step
        self._elements = elements
        self._files: dict[int, StepFiles] = {}
        self._sequence = count()
        self.stacks: dict[str, list[tuple[str, int, str]]] = {}

    def take(self, op_type: str, op_name: str, role: str, values: Any, *, are_stacked: bool = False) -> None:
        """Record the parts that devices have of arrays, which may be in containers.

        Inside of a `shard_map` they are stacked: the first axis of each is that of the devices.
        """
        for keys, leaf in self._jax.tree_util.tree_leaves_with_path(values):
            way = tuple(self._jax.tree_util.keystr((key,), simple=True) for key in keys)
            name = TensorName("", "", op_type, op_name, *io_and_slot(role, way))
            self._take(name._replace(sequence=next(self._sequence)), leaf, is_stacked=are_stacked)

    def _take(self, name: TensorName, leaf: Any, *, is_stacked: bool) -> None:
        jax = self._jax
        value = jax.numpy.asarray(leaf)
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended) or value.dtype == jax.dtypes.float0:
            return  # keys of random generators, and gradients of whole numbers
        for shard in value.addressable_shards:
            part = np.asarray(shard.data)
            placement = None if is_stacked else jax_placement_of(value, shard.device)
            snapshot = snapshot_of(part[0] if is_stacked else part, elements=self._elements)
            self._of(shard.device.id).add(name, snapshot, placement)

    def _of(self, rank: int) -> StepFiles:
        if rank not in self._files:
            directory = self._directory / f"rank_{rank}" / f"step_{self._step}"
            try:
                self._files[rank] = StepFiles(directory, MAX_FILE_NBYTES)
            except FileExistsError as exc:
                hint = "Record into another directory, or remove those steps first."
                raise UsageError(f"{directory} exists", hint=hint) from exc
        return self._files[rank]

    def finish(self) -> None:
        """Write what is left, and mark the step as finished."""
        for files in self._files.values():
            files.finish(stacks_to_json(self.stacks), RecordedStep(tensors=0))


class _Evaluation:
    """Evaluates the equations of a program, and records what they take and give.

    Args:
        jax: the module.
        files: where that goes.
        mesh: the devices; None for a single one.
        is_manual: whether this is the inside of a `shard_map`: each value has one more axis, its first one,
            along which the devices have their own values.
    """

    def __init__(self, jax: Jax, files: _RankFiles, mesh: Any | None, *, is_manual: bool = False) -> None:
        self._jax = jax
        self._files = files
        self._mesh = mesh
        self._is_manual = is_manual
        self.spec = jax.sharding.PartitionSpec(*[mesh.axis_names] * is_manual if mesh is not None else ())
        """How values lie that all devices have, or each its own in a `shard_map`."""

    def run(
        self, program: Program, consts: Sequence[Value], arguments: Sequence[Value], path: str = ""
    ) -> list[Value]:
        """Evaluate a program, and return its outputs.

        Args:
            program: the program, without its constants.
            consts: these.
            arguments: its arguments; inside of a `shard_map`, with the axis of devices.
            path: what its equations are called after: the function or loop whose body it is.
        """
        values = dict(zip(program.constvars, map(self._everywhere, consts), strict=True))
        given = arguments if self._is_manual else map(self._everywhere, arguments)
        values |= dict(zip(program.invars, given, strict=True))
        numbers: Counter[str] = Counter()

        def read(variable: Any) -> Value:
            return self._everywhere(variable.val) if hasattr(variable, "val") else values[variable]

        for equation in program.eqns:
            called = ".".join(filter(None, (path, *_scopes(equation), _name_of(equation))))
            name = f"{called}.{numbers[called]}"
            numbers[called] += 1
            outputs = self._evaluate(equation, list(map(read, equation.invars)), name)
            values |= dict(zip(equation.outvars, outputs, strict=True))
        return list(map(read, program.outvars))

    def _everywhere(self, value: Value) -> Value:
        """Return a value of a single device as one that all devices of the mesh have."""
        jax, mesh = self._jax, self._mesh
        value = jax.numpy.asarray(value)
        if mesh is None or len(value.sharding.device_set) > 1:
            return value
        if self._is_manual:
            value = jax.numpy.broadcast_to(value, (mesh.size, *value.shape))
        return jax.device_put(value, jax.sharding.NamedSharding(mesh, self.spec))

    def _evaluate(self, equation: Equation, inputs: list[Value], name: str) -> Sequence[Value]:
        kind, params = equation.primitive.name, equation.params
        if kind in ("pvary", "pcast"):  # they change types alone
            return inputs
        if kind in _INLINE:
            program = params[_INLINE[kind]]
            return self.run(getattr(program, "jaxpr", program), getattr(program, "consts", ()), inputs, name)
        # Where they return None, the equation is evaluated as a single operator.
        structures = {
            "scan": self._scan,
            "while": self._while,
            "cond": self._cond,
            "shard_map": self._shard_map,
        }
        found = structures[kind](params, inputs, name) if kind in structures else None
        return self._operator(equation, inputs, name) if found is None else found

    def _operator(self, equation: Equation, inputs: list[Value], name: str) -> Sequence[Value]:
        op_type = f"Jax.{_name_of(equation)}"
        self._files.take(op_type, name, "input", inputs, are_stacked=self._is_manual)
        compute = functools.partial(_bind, self._jax, equation)
        if self._is_manual:
            outputs = self._on_devices(
                lambda *of: _stacked(compute(*_single(of))), inputs, self.spec, self.spec
            )
        else:
            outputs = list(map(self._everywhere, compute(*inputs)))
        self._files.take(op_type, name, "output", outputs, are_stacked=self._is_manual)
        self._files.stacks.setdefault(name, _stack(self._jax, equation))
        return outputs

    def _on_devices(
        self, function: Callable[..., Any], inputs: Sequence[Value], in_specs: Any, out_specs: Any
    ) -> Sequence[Value]:
        specs = {"in_specs": in_specs, "out_specs": out_specs}
        mapped = self._jax.shard_map(function, mesh=self._mesh, check_vma=False, **specs)
        outputs: Sequence[Value] = mapped(*inputs)
        return outputs

    def _shard_map(self, params: dict[str, Any], inputs: list[Value], name: str) -> Sequence[Value] | None:
        if self._is_manual or len(params["newly_manual_axes"]) < len(params["mesh"].axis_names):
            return None
        inside = _Evaluation(self._jax, self._files, self._mesh, is_manual=True)
        given = self._on_devices(lambda *of: _stacked(of), inputs, params["in_specs"], inside.spec)
        outputs = inside.run(params["jaxpr"], (), given, name)
        return self._on_devices(lambda *of: _single(of), outputs, inside.spec, params["out_specs"])

    def _scan(self, params: dict[str, Any], inputs: list[Value], name: str) -> Sequence[Value]:
        program, carried = params["jaxpr"], params["num_carry"]
        first = params["num_consts"]
        consts, carry, over = inputs[:first], inputs[first : first + carried], inputs[first + carried :]
        axis = int(self._is_manual)
        turns: dict[int, Sequence[Value]] = {}
        order = range(params["length"])
        for turn in reversed(order) if params["reverse"] else order:
            of_turn = [self._jax.numpy.take(value, turn, axis=axis) for value in over]
            outputs = self.run(program.jaxpr, program.consts, [*consts, *carry, *of_turn], name)
            carry, turns[turn] = outputs[:carried], outputs[carried:]
        stacked = zip(*(turns[turn] for turn in order), strict=True)
        return [*carry, *(self._jax.numpy.stack(values, axis=axis) for values in stacked)]

    def _cond(self, params: dict[str, Any], inputs: list[Value], name: str) -> Sequence[Value] | None:
        branch = self._same_everywhere(inputs[0])
        if branch is None:
            return None
        chosen = params["branches"][int(branch)]
        return self.run(chosen.jaxpr, chosen.consts, inputs[1:], name)

    def _while(self, params: dict[str, Any], inputs: list[Value], name: str) -> Sequence[Value] | None:
        test, body = params["cond_jaxpr"], params["body_jaxpr"]
        middle, last = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        carry: Sequence[Value] = inputs[last:]
        while True:
            (tested,) = self.run(test.jaxpr, test.consts, [*inputs[:middle], *carry], name)
            goes_on = self._same_everywhere(tested)
            if goes_on is None:
                return None
            if not goes_on:
                return carry
            carry = self.run(body.jaxpr, body.consts, [*inputs[middle:last], *carry], name)

    def _same_everywhere(self, value: Value) -> Any:
        """Return a scalar by which a program branches; None if devices have different ones."""
        values = np.unique(np.asarray(value))
        return values[0] if len(values) == 1 else None


def _stacked(values: Sequence[Value]) -> tuple[Value, ...]:
    return tuple(value[None] for value in values)


def _single(values: Sequence[Value]) -> tuple[Value, ...]:
    return tuple(value[0] for value in values)


def _bind(jax: Jax, equation: Equation, *inputs: Value) -> Sequence[Value]:
    """Compute what an equation computes."""
    if equation.primitive.name == "psum_invariant":  # only where the types of values say what varies
        return tuple(jax.lax.psum(value, equation.params["axes"]) for value in inputs)
    with equation.ctx.manager:
        outputs = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(equation.params))
    return outputs if equation.primitive.multiple_results else (outputs,)


def _name_of(equation: Equation) -> str:
    name = equation.primitive.name
    return str(equation.params.get("name", name)) if name in _INLINE else _NAMES.get(name, name)


def _scopes(equation: Equation) -> Iterator[str]:
    """Yield the scopes around an equation, such as modules of flax; `grad` first in a backward pass."""
    stack = str(equation.source_info.name_stack)
    if "transpose(" in stack:
        yield "grad"
    for word in ("transpose(", "jvp(", "vmap(", ")"):
        stack = stack.replace(word, "")
    yield from filter(None, stack.split("/"))


def _stack(jax: Jax, equation: Equation) -> list[tuple[str, int, str]]:
    """Return where the program makes an equation, without the frames of JAX."""
    traceback = equation.source_info.traceback
    own = str(Path(jax.__file__).parent), str(Path(__file__).parent)
    frames = traceback.frames if traceback is not None else ()
    places = ((frame.file_name, frame.line_num, frame.function_name) for frame in frames)
    return [place for place in places if not place[0].startswith(own)]
