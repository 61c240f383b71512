import pytest

from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store.packed import pool

KEY = StepKey(3, 7)
NAME = "0123456789abcdef" * 4


def test_a_path_tells_step_and_name() -> None:
    path = pool.array_path(KEY, NAME, "float32_big_endian")
    assert path == f"pool/step_7/{NAME}/float32_big_endian"
    assert pool.is_pooled(path)
    assert (pool.step_of(path), pool.name_in(path)) == (7, NAME)
    pool.refuse_foreign(KEY, path)


@pytest.mark.parametrize(
    "path",
    [
        f"pool/step_8/{NAME}/float32",
        f"pool/step_07/{NAME}/float32",
        f"pool/step_7/{NAME[1:]}/float32",
        f"pool/step_7/{NAME.upper()}/float32",
        f"pool/step_7/{NAME}/float32/c/0",
        f"pool/step_7/{NAME}/..",
        f"pool/../rank_0/{NAME}/float32",
        f"pool/step_7/{NAME}/float32\n",
        "tensors/float32",
        "",
    ],
)
def test_other_paths_are_refused(path: str) -> None:
    with pytest.raises(DamagedStore, match="not an array in the pool"):
        pool.refuse_foreign(KEY, path)


def test_run_files_have_no_pool() -> None:
    with pytest.raises(DamagedStore):
        pool.refuse_foreign(StepKey(3, None), f"pool/step_7/{NAME}/float32")


def test_what_is_found_has_hours_until_gc_may_remove_it() -> None:
    assert pool.GRACE_S - pool.REUSE_S - pool.MAX_SKEW_S > 4 * 3600


@pytest.mark.parametrize(("name", "without"), [("ab", "ab"), ("ab-cd", "ab"), ("", "")])
def test_the_name_of_a_generation_without_the_pool(name: str, without: str) -> None:
    assert pool.without_pool(name) == without
