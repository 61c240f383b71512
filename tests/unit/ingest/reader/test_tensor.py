"""One tensor: its elements as they were dumped, what the index knows of it, its neighbours."""

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.api import open_store
from ingest.reader.catalog import DamagedStepWarning
from tests.counted_requests import CountedRequests
from tests.damages import only
from tests.made_runs import numbers
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly, plan_all, run
from workers.errors import DamagedStore, UsageError


def objects_of(store: Path) -> list[Path]:
    return sorted(path for path in store.rglob("c/**/*") if path.is_file())


def read_everything(store: Path) -> list[bytes]:
    return [tensor.read().tobytes() for tensor in open_store(str(store)).tensors()]


def damage_of(store: Path) -> str:
    """Return what reading everything says: it warns of a step without an index, and refuses a tensor."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", DamagedStepWarning)
        try:
            read_everything(store)
        except DamagedStore as exc:
            return str(exc)
    return "\n".join(str(warning.message) for warning in warned)


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "remove"])
@pytest.mark.usefixtures("filled")
def test_damage_is_named_and_never_read_as_zeros(damage: str, store: Path) -> None:
    """Whichever object of the step it is."""
    intact = read_everything(store)
    paths = [path for path in objects_of(store) if "step_9" in str(path) and "files" not in str(path)]
    assert len(paths) > 15
    for path in paths:
        content = path.read_bytes()
        match damage:
            case "flip":
                path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
            case "truncate":
                path.write_bytes(content[:-3])
            case "empty":
                path.write_bytes(b"")
            case _:
                path.unlink()
        relative = str(path.relative_to(store))
        table = relative.removesuffix("/c/0/0").split("/", 3)[-1]
        assert table in damage_of(store)
        path.write_bytes(content)
    assert read_everything(store) == intact


def test_old_generation_is_not_mixed_with_the_new(made: MadeDump, store: Path) -> None:
    """Whoever opened a step keeps reading what was committed then."""
    path = made.add(np.arange(5.0))
    ingest_directly(made.root, store)
    (old,) = open_store(str(store)).tensors()
    path.write_bytes(path.read_bytes()[:-8] + np.float64(7).tobytes())
    ingest_directly(made.root, store)
    (new,) = open_store(str(store)).tensors()
    assert old.read()[-1] == 4
    assert new.read()[-1] == 7


def test_one_tensor_is_at_most_two_requests_after_its_step_was_opened(
    many: Path, requests: CountedRequests
) -> None:
    step = open_store(many).step(3, 7)
    (tensor,) = step.tensors()
    assert requests.of(tensor.read) <= 2


@pytest.mark.parametrize("fortran", [False, True])
def test_indexing_is_that_of_numpy(made: MadeDump, store: Path, *, fortran: bool) -> None:
    values = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    made.add(np.asfortranarray(values) if fortran else values)
    ingest_directly(made.root, store)
    (tensor,) = open_store(store).tensors()
    for index in np.s_[1:3, 0, -1, :, ..., ::-1, 5:2, 2:0:-1, (1, 2), (slice(None), 1), (0, 1, -2), (..., 3)]:
        assert np.array_equal(tensor[index], values[index]), index
    assert np.array_equal(np.asarray(tensor), values)
    assert (len(tensor), bool(tensor)) == (3, True)
    with pytest.raises(IndexError):
        tensor[3]


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_payload_of_another_step_is_not_examined(order: Any, made: MadeDump, store: Path) -> None:
    for step in range(2):
        made.add(np.full((4, 5), step, "<f4", order=order), step=step)
    ingest_directly(made.root, store)
    assert open_store(store).tensors(step=0)[0].examine().elements == 20
    shutil.copy(*(only(store, f"rank_0/step_{step}/*/tensors/float32/c/0") for step in (1, 0)))
    with pytest.raises(DamagedStore, match="the digest does not match"):
        open_store(store).tensors(step=0)[0].examine()


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 5), (3, 2), (100, 200)])
def test_elements_beyond_a_tensor_are_refused(made: MadeDump, store: Path, start: int, stop: int) -> None:
    """The elements of another tensor lie behind them in the store."""
    for op in ("A.a", "B.b"):
        made.add(np.arange(4, dtype=np.float32), tensor_name(op))
    ingest_directly(made.root, store)
    tensor = open_store(store).tensors("A.*")[0]
    with pytest.raises(UsageError, match=f"from {start} to {stop}"):
        tensor.elements(start, stop)
    assert tensor.elements(0, 4).tolist() == [0, 1, 2, 3]
    assert [len(edge) for edge in tensor.edges(-1)] == [0, 0]


def test_elements_that_were_left_out_are_said_to_be(made: MadeDump, store: Path) -> None:
    made.add(numbers(1, 2))
    for plan in plan_all(made.root, store, leave_out_tensors="disk is full"):
        run(plan)
    (tensor,) = open_store(store).tensors()
    assert tensor.is_dumped
    assert "disk is full" in tensor.removed
    assert tensor.statistics.max == 2
