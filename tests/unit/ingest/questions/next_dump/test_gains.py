"""What the next dump will answer that the one in the store cannot."""

from pathlib import Path

import pytest

from ingest.api import DumpStore, open_store
from ingest.questions.next_dump.find import gains
from ingest.questions.next_dump.suspicion import OperatorId, Suspect, Suspicion
from tests.made_runs import MadeRun, numbers
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly, plan_all, run

SUSPECT = Suspect(OperatorId("Net", "0", "Mul", "m"), 1.0, "it began here")


def gained(store: DumpStore, steps: tuple[int, ...] = (1,), ranks: tuple[int, ...] = (0,)) -> tuple[str, ...]:
    return gains(store, Suspicion((SUSPECT,), steps, ranks, "Mul"), [SUSPECT])


@pytest.mark.parametrize(
    ("inputs", "outputs", "text"),
    [
        ([], [numbers(1)], "whether it came in with the inputs of Mul, which were not dumped"),
        ([numbers(1)], [], "what Mul made of its inputs: its outputs were not dumped"),
        ([numbers(1)], [numbers(2)], None),
    ],
)
def test_what_was_not_dumped_of_the_operator_is_gained(
    made: MadeDump, store: Path, inputs: list[object], outputs: list[object], text: str | None
) -> None:
    MadeRun(made).op("Mul.m", inputs, outputs, step=1)  # type: ignore[arg-type]
    ingest_directly(made.root, store)
    assert gained(open_store(store)) == (() if text is None else (text,))


def test_steps_and_ranks_that_the_store_lacks_are_gained(made: MadeDump, store: Path) -> None:
    MadeRun(made).op("Mul.m", [numbers(1)], [numbers(2)], step=1)
    ingest_directly(made.root, store)
    assert gained(open_store(store), steps=(0, 1), ranks=(0, 3)) == (
        "how the same tensors were before, in step 0, which the store does not have of rank 0",
        "what rank 3 did in step 1, which the store does not have",
    )


def test_elements_are_gained_where_the_store_has_statistics(made: MadeDump, store: Path) -> None:
    MadeRun(made).op("Mul.m", [numbers(1)], [numbers(2)], step=1)
    for plan in plan_all(made.root, store, leave_out_tensors="disk is full"):
        run(plan)
    (text,) = gained(open_store(store))
    assert text.endswith("of 2 of these tensors, the store has statistics alone")
