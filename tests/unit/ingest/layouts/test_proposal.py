"""A pattern is proposed for trees that people make."""

from pathlib import Path

import numpy as np
import pytest

from ingest.layouts.detect import find_dump, propose
from workers.errors import UsageError

TWO_DIGITS = "rank{rank:[0-9]{2}}/it{step}/{module}.npy"


@pytest.mark.parametrize(
    ("paths", "pattern"),
    [
        (
            ["rank0/step1/fc.input.0.pt", "rank1/step2/a.b.output.1.pt"],
            "rank{rank}/step{step}/{module}.{io}.{slot}.pt",
        ),
        (["r/iter_5/x.npy", "r/iter_6/y.npy"], "{net}/iter_{step}/{module}.npy"),
        (["step3_rank1_logits.pt", "step4_rank0_loss.pt"], "step{step}_rank{rank}_{module}.pt"),
        (["rank0/step1/grad.fc.weight.safetensors"], "rank{rank}/step{step}/{io}.{module}.safetensors"),
        # Fields at the end of a name, the module in front of them.
        (
            ["fc.output.rank0.step7.npy", "a.b.input.rank1.step8.npy"],
            "{module}.{io}.rank{rank}.step{step}.npy",
        ),
        # The directory is the module, and the file says what it holds of it.
        (
            ["it_1/gpu0/fc/fwd_out.pt", "it_2/gpu1/conv/fwd_out.pt"],
            "it_{step}/gpu{rank}/{module}/{graph}_{io}.pt",
        ),
        (["step.3/rank.0/fc/input_0.npy"], "step.{step}/rank.{rank}/{module}/{io}_{slot}.npy"),
        # Directories that say neither are told apart.
        (["run/it7/rank0/forward/fc.pt"], "{net}/it{step}/rank{rank}/{graph}/{module}.pt"),
        (["a/b/c/it7/rank0/fc.pt"], "{net}/{graph}/{any0}/it{step}/rank{rank}/{module}.pt"),
        # One axis of parallelism is a rank; two are parts of one.
        (["iter1/dp0/fc.npy", "iter1/dp1/fc.npy"], "iter{step}/dp{rank}/{module}.npy"),
        (["iter1/tp0_pp1/fc.npy", "iter1/tp1_pp0/fc.npy"], "iter{step}/{net}/{module}.npy"),
        (["iter1/tp_rank_0_pp_rank_1/fc.npy"], "iter{step}/{net}/{module}.npy"),
        # Counters and times are no part of the name of a module.
        (["it1/rank0/0007_fc_output.pt"], "it{step}/rank{rank}/{sequence}_{module}_{io}.pt"),
        # A directory that is a number; words that merely end like one of a step or a kind.
        (["rank0/5/fc.npy", "rank0/6/fc.npy"], "rank{rank}/{step}/{module}.npy"),
        (["rank0/unit3/fc.npy"], "rank{rank}/{net}/{module}.npy"),
        (["rank0/step1/attn.in_proj.weight.npy"], "rank{rank}/step{step}/{module}.npy"),
        (["8/rank0/fc.npy"], "{step}/rank{rank}/{module}.npy"),
        # A layer has a number, too.
        (["rank0/layers/3/fc.npy"], "rank{rank}/{net}/{graph}/{module}.npy"),
        (["rank0/step1/12_fc.npy"], "rank{rank}/step{step}/{module}.npy"),
        # `rank` numbers all processes; a node and its device are parts of one; a number alone is the rank.
        (["node1/gpu0/global_rank8/it2/fc.pt"], "{net}/{graph}/global_rank{rank}/it{step}/{module}.pt"),
        (["node1/gpu0/it2/fc.pt"], "{net}/{graph}/it{step}/{module}.pt"),
        (["local_rank0/it2/fc.pt"], "local_rank{rank}/it{step}/{module}.pt"),
        # All ranks from 00 to 10 fit the width of the first ones.
        (["rank00/it1/a.npy", "rank09/it1/a.npy", "rank10/it1/a.npy"], TWO_DIGITS),
        # The module in front, and what the file holds of it behind.
        (["it1/fc_rank0_output.npy"], "it{step}/{module}_rank{rank}_{io}.npy"),
        (["dump_rank0_step3_fc.out.npy"], "dump_rank{rank}_step{step}_{module}.{io}.npy"),
        (["rank3.step7.safetensors"], "rank{rank}.step{step}.safetensors"),
        # `{io}` alone would take `grad_fc`.
        (["it1/rank0/grad_fc_weight.npy"], "it{step}/rank{rank}/{io:[a-z]+}_{module}.npy"),
        (["it1/rank0/output.npy"], "it{step}/rank{rank}/{module}.npy"),
    ],
)
def test_patterns_of_trees(paths: list[str], pattern: str, tmp_path: Path) -> None:
    make(tmp_path, *paths)
    assert propose(tmp_path) == (pattern, len(paths), len(paths))
    with pytest.raises(UsageError) as error:
        find_dump(tmp_path)
    assert f"--layout '{pattern}'" in str(error.value.hint)
    assert {listing.layout for listing in find_dump(tmp_path, layout=pattern).scan({}).listings} == {
        "declared"
    }


def make(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def test_no_pattern_gives_two_files_one_name(tmp_path: Path) -> None:
    """A pattern in which a directory is only `{any0}` would mix up what differs by that directory alone."""
    make(tmp_path, "a/b/x/it1/rank0/fc.npy", "a/b/y/it1/rank0/fc.npy")
    assert propose(tmp_path) is None


def test_step_that_is_written_in_two_ways_is_not_proposed(tmp_path: Path) -> None:
    make(tmp_path, "rank0/it1/fc.npy", "rank0/it01/fc.npy")
    assert propose(tmp_path) is None


def test_a_tree_with_steps_above_ranks_gets_its_pattern(tmp_path: Path) -> None:
    """Each `step_8/rank_0` would be a dump of MindSpore by its names, and the tree several dumps."""
    for step in ("step_000010", "step_000020"):
        (tmp_path / step / "rank_0").mkdir(parents=True)
        np.save(tmp_path / step / "rank_0" / "layer.0.attn.q_proj.output.npy", np.ones(2))
    with pytest.raises(UsageError, match="contains 2 dumps") as error:
        find_dump(tmp_path)
    assert "--layout 'step_{step}/rank_{rank}/{module}.{io}.npy'" in str(error.value.hint)
    assert "a store of its own" in str(error.value.hint)


def test_dumps_of_several_runs_are_not_taken_for_one_tree(tmp_path: Path) -> None:
    for run in ("monday", "tuesday"):
        (tmp_path / run / "rank_0" / "Net" / "0" / "8").mkdir(parents=True)
        np.save(tmp_path / run / "rank_0" / "Net" / "0" / "8" / "Add.a.0.0.1.output.0.npy", np.ones(2))
    with pytest.raises(UsageError, match="contains 2 dumps") as error:
        find_dump(tmp_path)
    assert "--layout" not in str(error.value.hint)
