"""The shape of a question: whatever people see of one is made from its function and its answer."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, ClassVar, Unpack

import pytest

import ingest
from ingest.api import DumpStore
from ingest.cli.app import load_command
from ingest.cli.question import help_of
from ingest.questions import QUESTIONS, Listed
from ingest.questions.outliers import OutliersAnswer
from ingest.questions.question import Answer, Option, Pattern, Question, Table
from ingest.reader.snapshot import LeftOut
from ingest.reader.tensor_filter import FilterFields, with_pattern
from ingest.reader.text import Plain
from workers.store.strict_json import dumps


@dataclass(frozen=True, slots=True)
class Constant(Plain):
    """A tensor that is the same in all steps."""

    also: ClassVar = ("is_zero",)

    rank: int
    name: str
    mean: float

    @property
    def is_zero(self) -> bool:
        return self.mean == 0


@dataclass(frozen=True, slots=True, repr=False)
class ConstantAnswer(Answer):
    """The tensors that are the same in all steps."""

    noun: ClassVar = "tensor"

    store: str
    tensors: tuple[Constant, ...]
    left_out: tuple[LeftOut, ...] = ()

    def table(self) -> Table[Constant]:
        columns = {"rank": lambda row: str(row.rank), "name": lambda row: row.name}
        return Table(columns, self.tensors, self.noun, right=("rank",))


def constant(
    store: DumpStore,
    pattern: Pattern = None,
    *,
    least: Annotated[int, Option("The fewest steps that a tensor must be in.", "N", kind=int)] = 2,
    **conditions: Unpack[FilterFields],
) -> ConstantAnswer:
    """Name the tensors that are the same in all steps.

    By their `digests`.

    Raises:
        UsageError: no tensor matches.
    """
    seen: dict[tuple[int, str], list[ingest.Tensor]] = {}
    for tensor in store.tensors(**with_pattern(pattern, conditions)):
        if tensor.step is not None:
            seen.setdefault((tensor.rank, tensor.name), []).append(tensor)
    same = [
        Constant(rank, name, tensors[0].statistics.mean)
        for (rank, name), tensors in seen.items()
        if len(tensors) >= least and len({tensor.digest for tensor in tensors}) == 1
    ]
    return ConstantAnswer(store.url, tuple(same))


@pytest.fixture(autouse=True)
def _new_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a question as CONTRIBUTING says: a module, and a line in the table."""
    module = ModuleType("constant_tensors")
    module.QUESTION = Question(constant, ("constant run.zarr --role weight",))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "constant_tensors", module)
    listed = Listed("constant_tensors", "Name the tensors that are the same in all steps.")
    monkeypatch.setitem(QUESTIONS, "constant", listed)


def test_a_command_has_the_parameters_of_the_function() -> None:
    options = {flag for parameter in load_command("constant").params for flag in parameter.opts}
    assert {
        "store",
        "pattern",
        "--least",
        "--role",
        "--where",
        "-w",
        "--limit",
        "--config",
        "--json",
    } <= options


def test_help_is_the_docstring_without_what_is_about_python() -> None:
    assert help_of(Question(constant, ("constant run.zarr",))) == (
        "Name the tensors that are the same in all steps.\n\nBy their [bold]digests[/].\n\n"
        "[bold]dump-ingest constant run.zarr[/]"
    )


def test_notebooks_and_pandas_have_the_rows(sketched_store: Path) -> None:
    answer = constant(ingest.open_store(sketched_store))
    count = len(answer.tensors)
    assert repr(answer) == f"<ConstantAnswer {sketched_store}: {count} tensors>"
    assert f"<strong>{count} tensors" in answer._repr_html_()
    assert list(answer.to_pandas().columns) == ["rank", "name", "mean", "is_zero"]


def test_questions_of_the_house_are_tables(sketched_store: Path) -> None:
    store = ingest.open_store(sketched_store)
    quantiles = ingest.quantiles(store, percents=[50, 99.9], rank=1, step=2)
    frame = quantiles.to_pandas()
    assert list(frame.columns)[-4:] == ["p50_low", "p50_high", "p99.9_low", "p99.9_high"]
    assert frame["p50_low"].iloc[1] == quantiles.tensors[1].percentiles[50].low
    losses = ingest.precision(store, formats="e4m3", rank=1, step=2)
    assert repr(losses) == f"<PrecisionAnswer {sketched_store}: {len(losses.table().rows)} casts>"
    assert losses.to_pandas()["format"].unique().tolist() == ["float8_e4m3fn"]
    assert '<th style="text-align:left">underflow</th>' in losses._repr_html_()


def test_a_table_without_rows_has_columns() -> None:
    answer = OutliersAnswer("run.zarr", "abs_max", 10.0, (), looked_at=3, too_small=0, without=0)
    assert repr(answer) == "<OutliersAnswer run.zarr: 0 places>"
    assert "kind" in answer.to_pandas().columns
    assert "0 places" in answer._repr_html_()
    assert json.loads(dumps(answer.to_dict()))["looked_at"] == 3
