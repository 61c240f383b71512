"""Whatever object of the view is missing: it is named, and no question is answered wrongly."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.reader.cubes import conditions as cube_conditions
from ingest.reader.verifying import verify_view
from tests.cube_stores import once
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.errors import DamagedStore
from workers.store.consolidated.cubes import REBUILD_HINT, CubeGrid, CubeLayouts
from workers.store.opening import open_objects, resolve

_GRID = CubeGrid(ranks=1, tensors=2, inner_tensors=2, steps=2)
_ARRAYS = [name for name, document in CubeLayouts(_GRID).documents(1, 1, 1).items() if "shape" in document]
#: Those that the questions below need, or could take for something else.
_ASKED = (
    *("max", "min", "l2_norm", "row", "digest", "nan_count", "pos_inf_count", "sketches", "aggregate"),
    *("by_tensor/max", "by_tensor/min", "by_tensor/row", "step", "rank", "tensor", "name", "op_type"),
    *("fingerprint", "status", "tensors", "with_histogram", "without_histogram", "statistic", "bound"),
)


def tensors_of(rank: int, step: int) -> list[np.ndarray]:
    """Five tensors, or three until step 3; one of step 3 of rank 2 has an infinity and a NaN."""
    random = np.random.default_rng(10 * step + rank)
    spread = (random.standard_normal(300) * 10.0**step).astype("<f4")
    if (rank, step) == (2, 3):
        spread[5:7] = np.inf, np.nan
    more = [np.full(3, -7.0 - step, "<f4"), random.standard_normal(9)] if step >= 3 else []
    return [spread, np.arange(4 + step), np.full(5, step, "<f2"), *more]


@pytest.fixture(scope="module")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five steps of two ranks, consolidated one by one: with one rank and two tensors in a chunk."""
    root = tmp_path_factory.mktemp("missing")
    store = root / "run.zarr"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CubeGrid, "for_size", classmethod(lambda *_: _GRID))
        for step in range(5):
            dump = MadeDump(root / f"dump_{step}")
            for rank in (0, 2):
                for slot, tensor in enumerate(tensors_of(rank, step)):
                    dump.add(tensor, tensor_name(slot=slot, time=slot + 1), rank=rank, step=step)
            ingest_directly(dump.root, store, sketches=True)
            once(open_objects(resolve(store)))
    return store


@pytest.fixture(scope="module")
def copied_store(made_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(made_store, tmp_path_factory.mktemp("copied") / "run.zarr")


def objects_of(store: Path, array: str) -> list[Path]:
    return sorted(path for path in (store / "consolidated" / array / "c").rglob("*") if path.is_file())


@pytest.fixture
def without(copied_store: Path) -> Callable[[Iterable[Path]], Iterator[str]]:
    """Returns a function that yields the key of each of some objects while it is missing."""

    def delete_each(paths: Iterable[Path]) -> Iterator[str]:
        for path in paths:
            kept = path.read_bytes()
            path.unlink()
            try:
                yield path.relative_to(copied_store).as_posix()
            finally:
                path.write_bytes(kept)

    return delete_each


def found(store: ingest.DumpStore, where: str) -> object:
    tensors = store.tensors(where=where)
    return [(tensor.rank, tensor.step, tensor.name) for tensor in (*tensors, *tensors.undecided)]


def found_in_view(store: ingest.DumpStore, where: str) -> object:
    matches = store.consolidated().find(where)
    return matches.to_dict("list"), matches.attrs["undecided"], matches.attrs["left_out"]


def values_of_ranks(store: ingest.DumpStore, statistic: str, pattern: str) -> object:
    values = ingest.rank_values(store, pattern, statistic)
    return {step: (of.ranks.tolist(), of.values.tolist()) for step, of in values.items()}


_STEPS: dict[str, Callable[[ingest.DumpStore], object]] = {
    "find max": lambda opened: found(opened, "max > 3"),
    "find pos_inf_count": lambda opened: found(opened, "pos_inf_count > 0"),
    "find sketches": lambda opened: found(opened, "p99 > 100"),
    "trend": lambda opened: ingest.trend(opened, "*output.0", "max").to_dict("list"),
    "heatmap of all": lambda opened: ingest.heatmap(opened, stat="l2_norm").values.tolist(),
    "heatmap": lambda opened: ingest.heatmap(opened, "*output.[13]", "min").values.tolist(),
    "matrix": lambda opened: str(ingest.matrix(opened, "non_finite").to_dict()),
    "rank values of all": lambda opened: values_of_ranks(opened, "mean", "*"),
    "rank values": lambda opened: values_of_ranks(opened, "nan_count", "*output.[34]"),
    "origin": lambda opened: str(ingest.origin(opened).to_dict()),
    "precision": lambda opened: str(ingest.precision(opened, formats=["e4m3"], where="p99 > 5").to_dict()),
}
_VIEW: dict[str, Callable[[ingest.DumpStore], object]] = {
    where: lambda opened, where=where: found_in_view(opened, where)  # type: ignore[misc]
    for where in (
        "max > 3",
        "nan_count > 0 or pos_inf_count > 0",
        "not l2_norm > 3",
        "p99 > 100 or overflow_float16 > 0",
        "op_type != '' and role != 'activation'",
    )
}


def answer(question: Callable[[ingest.DumpStore], object], store: Path) -> str:
    """Return an answer as text, in which NaN equals NaN; "damaged" if it is refused, with what to do."""
    try:
        return repr(question(ingest.open_store(store)))
    except DamagedStore as exc:
        return "damaged" if exc.hint == REBUILD_HINT else str(exc)


@pytest.fixture(scope="module")
def expected(copied_store: Path) -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cube_conditions, "LEAST_STEPS", 1)
        answers = {name: answer(question, copied_store) for name, question in (_STEPS | _VIEW).items()}
    assert len(set(answers.values())) == len(answers)
    return answers


def test_each_object_is_named_by_verify(
    copied_store: Path, without: Callable[[Iterable[Path]], Iterator[str]]
) -> None:
    objects = open_objects(resolve(copied_store))
    assert list(verify_view(objects)) == []
    count = 0
    for array in set(_ARRAYS) - {"commit"}:  # a commit without a copy is read itself
        keys = objects_of(copied_store, array)
        for key in without({keys[0], keys[len(keys) // 2], keys[-1]}):
            (damage,) = verify_view(objects)
            assert str(damage) == f"{key}: missing" or str(damage).startswith(f"consolidated/{array}: rank ")
            count += 1
    assert count > 2 * len(CubeLayouts(_GRID).per_step)


@pytest.mark.parametrize("array", _ASKED)
def test_no_question_is_answered_wrongly(
    array: str,
    copied_store: Path,
    without: Callable[[Iterable[Path]], Iterator[str]],
    expected: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the steps, all are answered; those of the view itself, or it is called damaged."""
    monkeypatch.setattr(cube_conditions, "LEAST_STEPS", 1)
    keys = objects_of(copied_store, array)
    for key in without({keys[0], keys[len(keys) // 2], keys[-1]}):
        for name, question in _STEPS.items():
            assert answer(question, copied_store) == expected[name], (key, name)
        for name, question in _VIEW.items():
            assert answer(question, copied_store) in (expected[name], "damaged"), (key, name)


def test_a_chunk_that_no_tensor_has_need_not_be_there(made_store: Path) -> None:
    """Tensors were added to the axis after the first steps, and no object of these was written for them."""
    root = made_store / "consolidated"
    state = json.loads((root / "zarr.json").read_text())["attributes"]["dump_ingest"]
    assert state["tensors"] == 5
    for array in ("max", "row", "digest"):
        chunks = {path.relative_to(root / array / "c").parts[:3] for path in objects_of(made_store, array)}
        assert len(chunks) == 2 * (3 * 2 + 2 * 3)
