"""`dump-ingest show`: a tensor with the context of its operator."""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

import ingest
from ingest.api import DumpStore, open_store
from ingest.cli import show
from ingest.cli.show import choose_tensor, show_whole
from ingest.reader.tensor import Tensor
from tests.asked_dumps import asked_dump, store_of
from tests.cli import Answer, strict_json
from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.replicas import Replicas
from workers.errors import UsageError


class Show(Protocol):
    """Runs the command with these options and returns what it printed to stdout and stderr."""

    def __call__(self, store: Path, name: str, /, **options: Any) -> tuple[str, str]: ...


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Show:
    """The command, within this process."""
    monkeypatch.delenv("DUMP_INGEST_CONFIG", raising=False)

    def run(store: Path, name: str, /, **options: Any) -> tuple[str, str]:
        show.show_command(str(store), name, **options)
        printed = capsys.readouterr()
        return printed.out, printed.err

    return run


def test_json_has_the_context(shown: Show, nan_store: Path) -> None:
    row = strict_json(shown(nan_store, "Log.*.output.0", rank=1, step=2, json=True)[0])
    assert row["source_line"] == {
        "file": "/srv/train/nan_train.py",
        "line": 45,
        "code": "return -(self.log(self.sig(self.net(x)) + shift)).mean()",
        "of": "op",
        "matched": "exact",
        "op": "Default/net-LogLoss/Log-op0",
        "source": "rank_1/graphs/ms_output_trace_code_graph_0.ir",
    }
    assert [frame["line"] for frame in row["stack"]] == [86, 87, 44, 45]
    assert row["operator"] == "Default/net-LogLoss/Log-op0"
    assert row["position"] == 19
    assert (row["candidates"], row["parent"], row["kernel_args"]) == ([], None, None)


def test_arguments_are_printed(shown: Show, made: MadeDump, store: Path) -> None:
    made.add(np.ones(2, np.float32))
    made.add(b'{"transpose_a": "False", "transpose_b": "\\u001b[2J"}', "MatMul.net_MatMul-op0.json")
    ingest_directly(made.root, store)
    text, said = shown(store, "MatMul*", rank=0, step=0)
    assert "kernel_args      transpose_a: False\nkernel_args      transpose_b: \\x1b[2J\n" in text
    assert said == ""


def test_neighbours_are_printed(shown: Show, nan_store: Path) -> None:
    text, _ = shown(nan_store, "Log.*.output.0", rank=1, step=2)
    assert "\nread_by          ReduceMean.Default_net-LogLoss_ReduceMean-op0.input.0\n" in text
    text, _ = shown(nan_store, "Log.*.input.0", rank=1, step=2)
    assert "\nwritten_by       Add." in text


def test_places_of_nan_and_percentiles_are_printed(shown: Show, nan_store: Path) -> None:
    text, _ = shown(nan_store, "Log.*.output.0", rank=1, step=2)
    assert "\nnot finite       2 of 24: [2, 1] NaN, [4, 3] NaN\n" in text
    assert "\n  axis 1         2 of 4 positions: 1 (1), 3 (1)\n" in text
    assert "50%=-0.663061" in text


def test_a_slice_is_printed_and_saved(shown: Show, nan_store: Path, tmp_path: Path) -> None:
    (tensor,) = open_store(nan_store).tensors("Log.*.output.0", rank=1, step=2)
    expected = tensor.read()[3:5, :]
    row = strict_json(shown(nan_store, tensor.name, rank=1, step=2, at="3:5,:", json=True)[0])
    assert np.array_equal(np.array(row["values"], np.float32), expected, equal_nan=True)
    text, _ = shown(nan_store, tensor.name, rank=1, step=2, at="3:5,:")
    assert "\n[3:5,:]  2x4\n" in text
    shown(nan_store, tensor.name, rank=1, step=2, at="3:5,:", save=tmp_path / "x.npy")
    assert np.array_equal(np.load(tmp_path / "x.npy"), expected, equal_nan=True)


def test_a_sample_is_called_one(shown: Show, dumps: DumpLibrary, tmp_path: Path) -> None:
    """Otherwise the statistics of 200 elements would pass for those of a tensor."""
    dump = asked_dump(dumps, tmp_path / "dump")
    store = store_of(dump, tmp_path / "s", iteration="2", e2e={"sample_mode": 1, "sample_num": 100})
    name = store.tensors("Log.*.output.0", rank=1)[0].name
    out, _ = shown(tmp_path / "s", name, rank=1, step=2)
    assert "sample           the first and the last 100 elements" in out
    out, _ = shown(tmp_path / "s", name, rank=1, step=2, json=True)
    assert strict_json(out)["sample"] == 100


def test_a_window_is_a_table_with_the_names_of_its_rows(nan_store: Path, answer: Answer) -> None:
    log = (nan_store, "Log.*.output.0", "--rank", 1, "--step", 2)
    head, first, *rest = answer("show", *log, "--window", "2:4,:2").stdout.splitlines()
    assert head.split() == ["0", "1"]
    assert first.split() == ["[2]", "-0.57691264", "nan"]
    assert len(rest) == 1
    printed = answer("show", *log, "--window", "2:4,:2", "--json").json
    (tensor,) = open_store(nan_store).tensors(rank=1, step=2, name="Log.*.output.0")
    assert printed == ingest.window(tensor, 2, 0, 2, 2)
    assert "does not go with" in answer("show", *log, "--window", ":,:", "--at", ":", code=2).stderr


LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


@pytest.fixture(scope="module")
def one_step() -> DumpStore:
    """One rank, one step."""
    made = Replicas()
    made.put(0, 3, {"Adam.w.input.0": 1, "Adam.w.input.1": 2, "Mul.a[0].output.0": 3})
    return made.store


def test_rank_and_step_may_be_left_out_if_there_is_one(one_step: DumpStore) -> None:
    assert choose_tensor(one_step, "Mul.*", None, None, None).name == "Mul.a[0].output.0"


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("Adam.*", "2 tensors that match 'Adam.*':\n    graph", "--graph tells graphs apart"),
        ("adam.w.input.9", "has no tensor 'adam.w.input.9'", "Similar: Adam.w.input."),
        ("Nothing at all", "rank 0 step 3 has no tensor", "dump-ingest ls STORE --tensors"),
    ],
)
def test_what_fits_none_or_several_is_named(one_step: DumpStore, name: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        choose_tensor(one_step, name, None, None, None)
    assert message in error.value.message
    assert hint in error.value.hint


def test_with_several_ranks_or_steps_one_must_be_named(nan_store: Path) -> None:
    store = open_store(nan_store)
    with pytest.raises(UsageError, match="there are 2 ranks") as error:
        choose_tensor(store, LOG, None, 2, None)
    assert error.value.hint == "Name one with --rank: 0-1."
    with pytest.raises(UsageError, match="rank 1 has 3 steps") as error:
        choose_tensor(store, LOG, 1, None, None)
    assert error.value.hint == "Name one with --step: 1-3."
    assert choose_tensor(store, LOG, 1, 2, None).statistics.nan_count == 2
    with pytest.raises(UsageError):
        choose_tensor(store, LOG, 7, None, None)


@pytest.fixture
def piece(made: MadeDump, store: Path) -> Tensor:
    """Rows 0 and 1 of a matrix; rank 1 has rows 2 and 3."""
    for rank in range(2):
        values = np.arange(6, dtype="<f4").reshape(2, 3) + 6 * rank
        made.add(values, tensor_name("Mul.m", time=1), rank=rank, step=1)
    ingest_directly(made.root, store)
    return open_store(store).tensors(rank=0)[0]


@pytest.mark.parametrize(("placement", "at"), [("shard 7", None), ("nonsense", None), ("shard 0", "9:")])
def test_what_does_not_fit_is_refused(piece: Tensor, placement: str, at: str | None) -> None:
    with pytest.raises(UsageError):
        show_whole(piece, placement, f"{at},5" if at else None, None, json=False)
