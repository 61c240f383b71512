"""What the operators of a step read, as far as the names and bytes of its tensors tell."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ingest.reader.operator_kinds import (
    FUNCTIONS,
    RECOMPUTED,
    StepPart,
    is_awaited,
    is_collective,
    is_container,
    is_input,
    is_optimizer,
    is_output,
    is_parameter,
    is_point_to_point,
    parts_of,
    receives_as_is,
    writes_in_place,
)
from workers.store.consolidated.blocks import OperatorKey, TensorKey

_NO_DIGEST = b""
_MARK = re.compile(r"^(?:param|grad)\w*[._]+")

#: In a dump that tells the order, at most one input in this many stands before the output that it equals.
_LATE = 8


def gradient_name(parameter: str) -> str:
    """Return what the gradient of a parameter is called beside it."""
    for kind in ("Parameter", "param"):
        if kind in parameter:
            return parameter.replace(kind, "Gradient" if kind == "Parameter" else "grad__param", 1)
    return ""


def module_of(key: TensorKey) -> str:
    """Return the module that a parameter, or the gradient of one, is of."""
    return _MARK.sub("", key.op_name).rpartition(".")[0]


@dataclass(frozen=True)
class Dataflow:
    """The tensors of a step of A, in order of execution, and what is known of the bytes of both sides."""

    keys: Sequence[TensorKey]
    digests: tuple[Sequence[bytes], Sequence[bytes]] | None = None
    """Of the tensors of A and of B, b"" where not known; of pieces one after another."""
    in_b: dict[int, int] = field(default_factory=dict)
    dtypes: tuple[Sequence[str], Sequence[str]] | None = None
    """The types of the tensors of A and of B; None if they are not known."""
    is_same_rank: bool = True
    """Whether A and B have the same ranks: what two ranks differ by, a reduction makes equal again."""
    has_other_ranks: bool = False
    """Whether these are the tensors of one of several ranks, which may have sent something."""

    @cached_property
    def names(self) -> list[str]:
        """The names of the tensors."""
        return [key.name for key in self.keys]

    @cached_property
    def parts(self) -> list[StepPart]:
        """What the tensors are in training."""
        return parts_of(self.keys)

    @cached_property
    def parameter_gradients(self) -> list[int]:
        """The gradients of parameters; not the parts of sparse ones, whose rows each rank has its own of."""
        gradients = (n for n, part in enumerate(self.parts) if part is StepPart.PARAMETER_GRADIENT)
        return [n for n in gradients if not self.is_sparse(n)]

    def is_sparse(self, number: int) -> bool:
        """Return whether a tensor is the indices or the values of a sparse one."""
        return self.keys[number].io.endswith((".indices", ".values"))

    @cached_property
    def idle(self) -> frozenset[int]:
        """The tensors of the passes that come first, if no parameter has a gradient of them.

        So a stage of a pipeline runs once on memory that nobody wrote, to see the shapes. What it calls must
        be called again later, and gradients be dumped after each later pass: FSDP has them after the last one
        alone, for all passes, if it is told to reduce them only then.
        """
        gradients = Counter(map(self.repeated_name, self.parameter_gradients))
        if max(gradients.values(), default=0) < 2:
            return frozenset()
        passes: list[list[int]] = [[]]
        for number, part in enumerate(self.parts):
            is_forward = part is StepPart.ACTIVATION and self.keys[number].graph != RECOMPUTED
            if is_forward and passes[-1] and self.parts[passes[-1][-1]].is_gradient:
                passes.append([])
            if part is not StepPart.PARAMETER:
                passes[-1].append(number)
        trains = [any(self.parts[n] is StepPart.PARAMETER_GRADIENT for n in own) for own in passes]
        first = trains.index(True) if any(trains) else 0
        later = {self.repeated_name(n) for own in passes[first:] for n in own}
        idle = frozenset(n for own in passes[:first] for n in own)
        return idle if all(self.repeated_name(n) in later for n in idle) else frozenset()

    def is_awaited(self, number: int) -> bool:
        """Return whether a tensor was dumped before anybody waited for the collective that writes it."""
        return is_awaited(self.keys[number].io)

    def is_numbered(self, number: int) -> bool:
        """Return whether nothing but the number of a call tells a tensor from others."""
        return self.keys[number].op_type.startswith(FUNCTIONS)

    @cached_property
    def last_of(self) -> dict[str, int]:
        """The number of the last tensor with a name, of those that were dumped several times in the step."""
        return {self.repeated_name(number): number for number in range(len(self.keys))}

    def repeated_name(self, number: int) -> str:
        """Return the name that a tensor has in common with what was dumped as it in the step again."""
        return self.keys[number]._replace(occurrence=0, copy=0).name

    @cached_property
    def kinds(self) -> list[tuple[str, ...]]:
        """What tensors have in common that the same operation returned, with other elements.

        The gradient of a parameter is computed as its type of module does. What computed the gradient of an
        output is not known, but is the same in all layers.
        """
        types = {key.op_name: key.op_type for key in self.keys}
        kinds: list[tuple[str, ...]] = []
        for key, part in zip(self.keys, self.parts, strict=True):
            if part is StepPart.PARAMETER:
                kinds.append(("update",))
            elif part is StepPart.PARAMETER_GRADIENT:
                module, role = module_of(key), key.op_name.rpartition(".")[2]
                kinds.append(("gradient", types.get(module, module), role))
            elif part is StepPart.GRADIENT:
                kinds.append(("gradient", key.op_type, re.sub(r"\d+", "", key.op_name)))
            else:
                kinds.append((key.op_type,))
        return kinds

    @cached_property
    def has_parameters(self) -> bool:
        """Whether the parameters of modules are dumped."""
        return any(is_parameter(key.op_type) for key in self.keys)

    def is_output(self, number: int) -> bool:
        """Return whether an operator returned a tensor."""
        return is_output(self.keys[number].io)

    def reads(self, number: int, known: Container[int]) -> list[int] | None:
        """Return what the operator of a tensor read, of what is known; None if that is not known at all.

        An output is computed of the inputs of its operator, and of the parameters of a module and of those
        that were called in it. The gradient of a parameter is computed of the gradient of what its module
        returned, and of what that read.
        """
        key, part = self.keys[number], self.parts[number]
        if is_parameter(key.op_type) or is_input(key.io):
            return None
        if part.is_gradient:
            module = module_of(key) if part is StepPart.PARAMETER_GRADIENT else ""
            of_module = (self._gradients_of_outputs.get(module, ()), self._inputs.get(module, ()))
            # Of a module that is called again after this pass, what later calls read does not count.
            passed, read = (
                [n for n in numbers if n in known and (n < number or not self.is_in_order)]
                for numbers in of_module
            )
            return [*passed, *read] if passed else None
        inputs = self._inputs.get(key.operator)
        if not inputs or any(n not in known for n in inputs):
            return None
        inner = {key.op_name, *(self.keys[n].op_name for n in range(inputs[0], number))}
        parameters = {n for module in inner for n in self._parameters.get(module, ())}
        return [*inputs, *sorted(n for n in parameters if n in known)]

    @cached_property
    def first_lone_gradient(self) -> float:
        """The first gradient of a parameter that B does not have; infinite without any."""
        return next((n for n in self.parameter_gradients if n not in self.in_b), math.inf)

    def may_receive(self, number: int) -> bool:
        """Return whether a module with others inside may have read what other ranks sent, too."""
        key, inputs = self.keys[number], self._inputs.get(self.keys[number].operator)
        within = self.keys[inputs[0] : number] if inputs and self.has_other_ranks else ()
        return any(other.op_name.startswith(f"{key.op_name}.") for other in within)

    def digest(self, number: int) -> bytes:
        """Return the digest of a tensor of A; b"" if it is not known."""
        return _NO_DIGEST if self.digests is None else self.digests[0][number]

    def is_partial_sum(self, number: int) -> bool:
        """Return whether the gradient of a parameter is dumped again, with what later calls have added."""
        is_of_parameter = self.parts[number] is StepPart.PARAMETER_GRADIENT
        return is_of_parameter and self.last_of[self.repeated_name(number)] != number

    def dtypes_within(self, number: int) -> set[str]:
        """Return the types in which a tensor was computed, as far as they are dumped.

        A module may call others that compute in another type, and so may what the gradient of a parameter is
        added up of, whatever the type in which both are returned.
        """
        key = self.keys[number]
        if self.dtypes is None:
            return set()
        if self.parts[number] is StepPart.PARAMETER_GRADIENT:
            module = module_of(key)
            used = [*self._gradients_of_outputs.get(module, ()), *self._inputs.get(module, ())]
            # Of a parameter that no module of its own computes with, any of the step may have been read; and
            # a table is multiplied with where the model calls no module, as its head.
            is_table = all("int" in self.dtypes[0][n] for n in self._inputs.get(module, ()))
            used = [*used, *self._of_activations] if is_table else used
        elif self.is_output(number) and (inputs := self._inputs.get(key.operator)):
            used = list(range(inputs[0], number))
        else:
            return set()
        of_b = {self.dtypes[1][self.in_b[n]] for n in used if n in self.in_b}
        return of_b.union(self.dtypes[0][n] for n in used)

    @cached_property
    def is_in_order(self) -> bool:
        """Whether modules stand in the order of execution: what they read is written before, by its bytes.

        Files whose names do not tell the order stand in that of their paths.
        """
        inputs = (n for n, key in enumerate(self.keys) if is_input(key.io) and is_container(key.op_type))
        read = [n for n in inputs if self.digest(n) in self._written]
        return _LATE * sum(self._written[self.digest(n)] > n for n in read) <= len(read)

    def written_as(self, number: int) -> list[int]:
        """Return the output of A that an input of A has the bytes of, if there is one."""
        is_known = is_input(self.keys[number].io) and self.digest(number) in self._written
        return [self._written[self.digest(number)]] if is_known else []

    @cached_property
    def _written(self) -> dict[bytes, int]:
        """The first output of A, by its digest; what only passes its input on writes nothing."""
        written: dict[bytes, int] = {}
        for number, key in enumerate(self.keys):
            if self.parts[number] is StepPart.ACTIVATION and is_output(key.io) and self.digest(number):
                given = map(self.digest, self._inputs.get(key.operator, ()))
                if self.digest(number) not in given:
                    written.setdefault(self.digest(number), number)
        return written

    @cached_property
    def _of_activations(self) -> list[int]:
        return [n for n, part in enumerate(self.parts) if part is StepPart.GRADIENT]

    def read_otherwise(self, number: int) -> int | None:
        """Return the input of A that stands for what was dumped of a tensor, but has other bytes; else None.

        It is known which by B, where an input has the bytes of the tensor's counterpart.
        """
        if self.digests is None or is_input(self.keys[number].io) or number not in self.in_b:
            return None
        own, in_b = self.digests[0][number], self.digests[1][self.in_b[number]]
        if _NO_DIGEST in (own, in_b) or self._readers[0].get(own):
            return None
        readers = [n for n in self._readers[1].get(in_b, ()) if n > number]
        return readers[0] if readers else None

    def results(self, number: int) -> list[int]:
        """Return the outputs of later operators of A that were given the very bytes that were dumped."""
        own = self.digest(number)
        readers = () if own == _NO_DIGEST else self._readers[0].get(own, ())
        return [n for reader in readers if reader > number for n in self.outputs[self.keys[reader].operator]]

    def is_overwritten(self, number: int) -> bool:
        """Return whether an input is memory that its operator writes over, as `recv` does.

        It may hold anything before. What else the operator has returned shows whether that was read.
        """
        key = self.keys[number]
        if not is_input(key.io) or not writes_in_place(key.op_type) or is_optimizer(key.op_type):
            return False
        if is_point_to_point(key.op_type) and receives_as_is(key.op_type):
            return True  # it reads nothing: it waits for what another rank sends to it
        # What a rank gives to a collective is read, but by another rank than that of B maybe.
        is_written = (
            self.is_same_rank if is_collective(key.op_type) else self._inputs[key.operator][0] == number
        )
        return is_written and bool(self.outputs[key.operator])

    @cached_property
    def outputs(self) -> dict[OperatorKey, list[int]]:
        """The outputs by their operator."""
        outputs: dict[OperatorKey, list[int]] = defaultdict(list)
        for number in filter(self.is_output, range(len(self.keys))):
            outputs[self.keys[number].operator].append(number)
        return outputs

    @cached_property
    def _readers(self) -> tuple[dict[bytes, list[int]], dict[bytes, list[int]]]:
        """The inputs of A by their digests, on A and on B."""
        of_a: dict[bytes, list[int]] = defaultdict(list)
        of_b: dict[bytes, list[int]] = defaultdict(list)
        if self.digests is not None:
            for number, other in self.in_b.items():
                if is_input(self.keys[number].io):
                    of_a[self.digests[0][number]].append(number)
                    of_b[self.digests[1][other]].append(number)
        return of_a, of_b

    @cached_property
    def _inputs(self) -> dict[OperatorKey | str, list[int]]:
        """The inputs by their operator, and by its name, whatever its type."""
        inputs: dict[OperatorKey | str, list[int]] = defaultdict(list)
        for number, key in enumerate(self.keys):
            if is_input(key.io):
                inputs[key.operator].append(number)
                inputs[key.op_name].append(number)
        return inputs

    @cached_property
    def _parameters(self) -> dict[str, list[int]]:
        parameters: dict[str, list[int]] = defaultdict(list)
        for number, key in enumerate(self.keys):
            if is_parameter(key.op_type):
                parts = key.op_name.split(".")
                for length in range(1, len(parts)):
                    parameters[".".join(parts[:length])].append(number)
        return parameters

    @cached_property
    def _gradients_of_outputs(self) -> dict[str, list[int]]:
        gradients: dict[str, list[int]] = defaultdict(list)
        for number, key in enumerate(self.keys):
            module, is_of_output, _ = key.op_name.rpartition(".output")
            if is_of_output and self.parts[number].is_gradient:
                gradients[module].append(number)
        return gradients
