"""Dump made-up runs, in which operators on several ranks read and write arrays, as MindSpore does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.npy_files import MadeDump, tensor_name

Values = np.ndarray[Any, Any]


@dataclass
class MadeRun:
    """Writes each input and output of an operator as a file, in the order of the clock of its rank."""

    dump: MadeDump
    clocks: dict[int, int] = field(default_factory=dict)
    """Microseconds since the epoch by rank. They may be hours apart: clocks of ranks are not comparable."""

    def op(
        self,
        name: str,
        inputs: Sequence[Values | None] = (),
        outputs: Sequence[Values | None] = (),
        *,
        rank: int = 0,
        step: int = 0,
        graph: str = "0",
    ) -> None:
        """Dump one call of an operator, named `{type}.{name}`; None stands for a tensor that is left out."""
        for io, tensors in (("input", inputs), ("output", outputs)):
            for slot, values in enumerate(tensors):
                if values is not None:
                    time = self.clocks[rank] = self.clocks.get(rank, 1_795_220_037_870_000) + 100
                    self.dump.add(
                        values, tensor_name(name, io, slot, time=time), step=step, rank=rank, graph=graph
                    )

    def parameter(self, name: str, values: Values, *, rank: int = 0, step: int = 0) -> None:
        """Dump a parameter as it is at the end of a step, or an input of the network."""
        self.op(f"Parameter.{name}", (), [values], rank=rank, step=step)


def numbers(*values: float) -> Values:
    """Return a small array of float32."""
    return np.array(values, np.float32)
