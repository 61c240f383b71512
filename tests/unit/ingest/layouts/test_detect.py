"""From a directory that a user names to the dump in it, and to the ranks of its places."""

import json
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.layouts import detect, walk
from ingest.layouts import places as search
from ingest.layouts.base import PathRank
from ingest.layouts.declared import declare
from ingest.layouts.detect import LAYOUTS, find_dump, propose
from ingest.layouts.places import Discovery, PlaceSearch, Ranks, tensors_beside
from ingest.planning.inspection import inspect
from ingest.planning.plan import plan_rows
from tests.stores import DumpLibrary, MadeDump, listings, npy_bytes
from workers.errors import AccessDenied, UsageError
from workers.model import StepKey

# From a directory that a user names to the dump in it.


def test_directory_of_another_user_is_a_matter_of_permissions(
    made: MadeDump, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root nothing is denied, so the refusal is made up."""
    made.add(b"", step=0)
    made.add(b"", step=1)
    scandir = os.scandir

    def refuse(path: str | Path) -> object:
        if str(path).endswith("/1"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr("os.scandir", refuse)
    found = listings(made.root)
    assert not found[StepKey(0, 0)].problems
    (problem,) = found[StepKey(0, 1)].problems
    assert problem.denied
    assert "setfacl" in problem.hint
    monkeypatch.setattr("os.scandir", lambda _: refuse("/1"))
    with pytest.raises(AccessDenied):
        find_dump(made.root)


def test_dump_is_found_below_and_at_a_rank(made: MadeDump, tmp_path: Path) -> None:
    made.add(b"", rank=0)
    made.add(b"", rank=3)
    assert find_dump(tmp_path).root == made.root
    assert {key.rank for key in listings(made.root / "rank_3")} == {3}


def test_a_store_is_no_dump(made: MadeDump, tmp_path: Path) -> None:
    made.add(b"", rank=0)
    (made.root / "zarr.json").write_text("{}")
    with pytest.raises(UsageError, match="is a store"):
        find_dump(made.root)
    (tmp_path / "job" / "rank_0" / "Net" / "0" / "1").mkdir(parents=True)
    assert find_dump(tmp_path).root == tmp_path / "job"


@pytest.mark.parametrize(
    ("place", "named", "rank", "step"),
    [
        ("worldsize4_global_rank1/20260101000000/3/graph_1/1/8", "worldsize4_global_rank1", 1, 8),
        (
            "worldsize4_global_rank1/20260101000000/3/graph_1/1/8",
            "worldsize4_global_rank1/20260101000000",
            1,
            8,
        ),
        ("20260101000000/3/Net/1/8", "20260101000000", 3, 8),
        ("20260101000000/3/Net/1/8", "20260101000000/3/Net/1", 3, 8),
        ("step8/rank1", "step8", 1, 8),
        ("step8/20260101000000/3", "step8", 3, 8),
        ("rank_1/Net/0/8", "rank_1/Net", 1, 8),
        ("rank_1/20260101000000/step_8", "rank_1/20260101000000", 1, 8),
        ("Net/device_3/iteration_8", "Net", 3, 8),
        ("Net/device_3/iteration_8", "Net/device_3", 3, 8),
        # A number is a step only for who names the directory above it.
        ("8/20260101000000/3/Net/1/5", "8", 3, 5),
        # One host's directory may be called like a rank, whatever is below.
        ("rank_0/step8/rank1", "rank_0", 1, 8),
    ],
)
def test_a_part_of_a_dump_is_taken_as_a_part(
    place: str, named: str, rank: int, step: int, tmp_path: Path
) -> None:
    """With the rank and the step that the directories above it tell."""
    (tmp_path / "dump" / place).mkdir(parents=True)
    (tmp_path / "dump" / place / "dump_tensor_data").mkdir()
    (tmp_path / "dump" / place / "dump_tensor_data" / "a.0.forward.input.0.npy").write_bytes(b"")
    (tmp_path / "dump" / place / "w_output_0_shape_2_Float32_DefaultFormat.bin").write_bytes(b"")
    listings = find_dump(tmp_path / "dump" / named).scan({}).listings
    assert [listing.key for listing in listings if listing.files] == [StepKey(rank, step)]


def test_checkpoints_are_found_beside_a_directory_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as `lost+found`. Whoever waits for a dump is told of it: the dump may be in there."""
    (tmp_path / "checkpoint-8").mkdir()
    (tmp_path / "checkpoint-8" / "trainer_state.json").write_text("{}")
    (tmp_path / "lost+found").mkdir()
    scandir = os.scandir

    def refuse(path: str | Path) -> object:
        if str(path).endswith("lost+found"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr("os.scandir", refuse)
    assert find_dump(tmp_path).root == tmp_path
    with pytest.raises(AccessDenied):
        find_dump(tmp_path, with_checkpoints=False)


# Finding places: by names alone, of all layouts at once.


def discover(root: Path, below: str = "") -> Discovery:
    return PlaceSearch(root, LAYOUTS, below).run()


def places(discovery: Discovery) -> set[tuple[str, str]]:
    return {(place.layout.name, place.path) for place in discovery.places}


def beside(discovery: Discovery) -> set[str]:
    return {file.path for walk in discovery.outside.values() for file in walk.files}


def test_files_outside_of_places_belong_to_the_rank_of_their_directory(tmp_path: Path) -> None:
    make(tmp_path, "rank_1/Net/0/8/a", "rank_1/graphs/deep/g.ir", "rank_1/note", "root.txt")
    discovery = discover(tmp_path)
    owned = {
        owner.rank.number if owner.rank else None: sorted(file.path for file in walk.files)
        for owner, walk in discovery.outside.items()
    }
    assert owned == {None: ["root.txt"], 1: ["rank_1/graphs/deep/g.ir", "rank_1/note"]}


def test_part_of_a_dump_is_all_that_is_entered(tmp_path: Path) -> None:
    make(tmp_path, "rank_0/Net/0/8/a", "rank_1/Net/0/8/a", "rank_1/Net/0/9/a", "root.txt")
    discovery = discover(tmp_path, "rank_1/Net")
    assert places(discovery) == {("mindspore", "rank_1/Net/0/8"), ("mindspore", "rank_1/Net/0/9")}
    assert beside(discovery) == set()


def test_directories_that_a_writer_moves_files_from_are_left_alone(tmp_path: Path) -> None:
    make(tmp_path, "rank_0/_/0/8/a", "rank_0/Net/0/8/b")
    discovery = discover(tmp_path)
    assert places(discovery) == {("mindspore", "rank_0/Net/0/8")}
    assert beside(discovery) == set()


@pytest.mark.parametrize(
    ("name", "reported"), [("rank_01", "rank_01"), ("rank_x", "rank_x/Net"), ("rank_1.bak", "rank_1.bak/Net")]
)
def test_directory_that_is_nearly_one_of_a_rank_is_reported(name: str, reported: str, tmp_path: Path) -> None:
    """What is in it would be missed."""
    make(tmp_path, "rank_0/Net/0/8/a", f"{name}/Net/0/8/a", "logs/Net/0/8/a")
    discovery = discover(tmp_path)
    assert [str(problem) for problem in discovery.unowned.problems] == [
        f"{reported}: is not how a dump names the directory of a rank"
    ]


@pytest.mark.parametrize(
    "path",
    [
        "step6/rank01/dump_tensor_data/a.npy",
        "step6/rank1.bak/dump_tensor_data/a.pt",
        "step6/Rank1/dump_tensor_data/a.pt",
        "rank01/1.Model-2.Linear-output.0.pt",
        "data_dump/rank-1/1.Model-2.Linear-output.0.pt",
    ],
)
def test_tensors_under_a_name_like_that_of_a_rank_are_reported(path: str, tmp_path: Path) -> None:
    """They were left out without a word, wherever the names of ranks are not the first level."""
    make(tmp_path, "step6/rank0/dump.json", "data_dump/rank0/1.Model-2.Linear-output.0.pt", path)
    make(tmp_path, "step6/rank1_logs/log.txt", "step6/ranks/a.pt", "step6/rank0/rank2/a.pt")
    directory = path.removesuffix("/1.Model-2.Linear-output.0.pt").partition("/dump_tensor_data")[0]
    assert [str(problem) for problem in discover(tmp_path).unowned.problems] == [
        f"{directory}: is not how a dump names the directory of a rank"
    ]


@pytest.mark.parametrize("path", ["rank_0/step_3/fc/a.npy", "step3/rank0/a.npy"])
def test_a_rank_of_a_tree_that_no_layout_knows_is_not_called_misnamed(path: str, tmp_path: Path) -> None:
    make(tmp_path, path)
    assert discover(tmp_path).unowned.problems == []


def test_file_whose_name_fits_several_patterns_is_opened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "rank_0/Net/0/8/a", "debug_mode/other_rank0_step1.json", "hparams_rank0_step1.json")
    begins_like, opened = walk.begins_like, Counter[str]()

    def counted(path: str, content: re.Pattern[bytes]) -> bool:
        opened[path] += 1
        return begins_like(path, content)

    for module in (detect, search):
        monkeypatch.setattr(module, "begins_like", counted)
    assert places(discover(tmp_path)) == {("mindspore", "rank_0/Net/0/8")}
    assert sorted(opened.values()) == [1, 1]
    opened.clear()
    find_dump(tmp_path)
    assert set(opened.values()) <= {1}


@pytest.mark.parametrize(
    ("directory", "is_left_out"),
    [
        ("rank_-1/Net/0/1", True),
        ("rank_4294967296/Net/0/1", True),
        ("rank_00/Net/0/1", True),
        ("rank_٣/Net/0/1", True),
        ("rank1x/Net/0/1", False),
        ("rank_logs", False),
        ("step6/rank01", True),
        ("step6/rank1.bak", False),
        ("rank_0/Net/0/-1", True),
        ("rank_0/Net/0/1234567890123456789", True),
        ("rank_0/Net/0/latest", False),
        ("rank_0/graphs/17", False),
    ],
)
def test_what_looks_like_a_rank_or_a_step_and_is_none_is_named(
    directory: str, is_left_out: bool, tmp_path: Path
) -> None:
    for path in (directory, "rank_0/Net/0/1"):
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
        (tmp_path / path / "a.npy").write_bytes(b"1")
    problems = [problem for problem in find_dump(tmp_path).scan({}).problems if problem.left_out]
    assert len(problems) == is_left_out
    for problem in problems:
        assert directory.startswith(problem.path)
        assert problem.hint


# A layout that the user declares.


def make(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(npy_bytes(np.zeros(2, np.float32)))


def named(root: Path, layout: str) -> dict[StepKey, list[tuple[str, str, int]]]:
    tree = find_dump(root, layout=layout)
    found = {}
    for listing in tree.scan({}).listings:
        names = [file.name for file in tree.describe(listing).named.values() if file.name is not None]
        found[listing.key] = [(name.op_name, name.io, name.slot) for name in names]
    return found


def test_rank_and_step_of_directories(tmp_path: Path) -> None:
    make(tmp_path, "rank0/step7/fc.1.out.2.npy", "rank1/step7/fc.1.grad.0.npy", "rank1/step7/odd.npy")
    assert named(tmp_path, "rank{rank}/step{step}/{module}.{io}.{slot}.npy") == {
        StepKey(0, 7): [("fc.1", "output", 2)],
        StepKey(1, 7): [("fc.1", "output", 0), ("odd", "output", 0)],
    }


def test_parameters_and_gradients_of_modules_that_are_called_so(tmp_path: Path) -> None:
    make(
        tmp_path,
        *(f"rank0/step0/{name}.output.0.npy" for name in ("grad.fc.weight", "param.fc.weight", "fc")),
    )
    tree = find_dump(tmp_path, layout="rank{rank}/step{step}/{module}.{io}.{slot}.npy")
    (listing,) = tree.scan({}).listings
    rows = plan_rows(inspect(tree.root, listing, tree.describe(listing), set(), {}))
    assert [(row.entry.name.op_type, row.entry.name.op_name) for row in rows] == [
        ("Module.fc", "fc"),
        ("Parameter", "fc.weight"),
        ("Gradient", "fc.weight"),
    ]


def test_rank_and_step_of_files(tmp_path: Path) -> None:
    make(tmp_path, "a_rank0_step1.npy", "b_rank0_step1.npy", "a_rank1_step1.npy", "other.txt")
    assert named(tmp_path, "{module}_rank{rank}_step{step}.npy") == {
        StepKey(0, None): [],
        StepKey(0, 1): [("a", "output", 0), ("b", "output", 0)],
        StepKey(1, 1): [("a", "output", 0)],
    }


@pytest.mark.parametrize("text", ["{module}.pt", "rank{rank}/{step:[}/{module}.pt", "a/b"])
def test_pattern_that_tells_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--layout"):
        declare(text)


TWO = "rank{rank}/step{step}/{module}.npy; {net:reference}/{module}.npy"


def test_tensor_files_that_fit_no_pattern_are_reported(tmp_path: Path) -> None:
    """Directories of other files, and what another layout covers, are not."""
    make(tmp_path, "rank0/step0/fc.npy", "odd/more/x.npy", "rank_1/Net/0/3/a.0.0.0.0.output.0.ND.npy")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "job.log").touch()
    problems = find_dump(tmp_path, layout="rank{rank}/step{step}/{module}.npy").scan({}).problems
    assert [(problem.path, problem.left_out) for problem in problems] == [("odd", True)]
    assert "add a pattern behind a semicolon" in problems[0].hint
    assert find_dump(tmp_path, layout=f"{TWO}; odd/more/{{module}}.npy").scan({}).problems == ()


def layouts_of(root: Path, layout: str) -> dict[StepKey, str]:
    return {listing.key: listing.layout for listing in find_dump(root, layout=layout).scan({}).listings}


def test_pattern_comes_before_layouts_whose_directories_have_the_same_names(tmp_path: Path) -> None:
    """`step1/rank0` is how msProbe names a step: it would keep the tensors as files."""
    make(tmp_path, "step1/rank0/fc.output.npy", "step1/rank0/odd.npy")
    assert named(tmp_path, "step{step}/rank{rank}/{module}.{io}.npy") == {
        StepKey(0, 1): [("fc", "output", 0), ("odd", "output", 0)]
    }


def test_directories_of_any_name_take_no_dump_of_a_known_system(tmp_path: Path) -> None:
    make(tmp_path, "mine/3/fc.npy")
    (tmp_path / "20240101000000" / "5").mkdir(parents=True)
    (tmp_path / "20240101000000" / "5" / "Add.add.1.2.1700000000000000").touch()
    assert layouts_of(tmp_path, "{net}/{step}/{module}.npy") == {
        StepKey(0, 3): "declared",
        StepKey(5, None): "cann",
    }


def test_file_that_fits_no_name_is_named_behind_its_directories(tmp_path: Path) -> None:
    """Otherwise the files of all modules would have one name."""
    make(tmp_path, "a/rank0/step1/fc/out.npy", "a/rank0/step1/fc/x2.npy", "b/rank0/step1/fc/x2.npy")
    tree = find_dump(tmp_path, layout="{net}/rank{rank}/step{step}/{module}/{io}.npy")
    (listing,) = tree.scan({}).listings
    names = [file.name for file in tree.describe(listing).named.values() if file.name is not None]
    assert [(name.net, name.op_name) for name in names] == [("a", "fc"), ("a", "fc.x2"), ("b", "fc.x2")]


# A pattern is proposed for trees that people make.


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


# Which rank a place belongs to, and who says so.


DEVICE_3, RANK_3, PID_3 = (PathRank(kind, 3) for kind in ("device", "rank", "pid"))


def table(*devices: tuple[object, object]) -> bytes:
    listed = [{"device_id": device, "rank_id": rank} for device, rank in devices]
    return json.dumps({"server_list": [{"device": listed}]}).encode()


@pytest.mark.parametrize(
    ("fields", "path_rank"),
    [
        ({"rank": "1", "device": "3", "pid": "9"}, PathRank("rank", 1)),
        ({"device": "3", "pid": "9"}, PathRank("device", 3)),
        ({"pid": "9"}, PathRank("pid", 9)),
        ({"rank": "1", "tensor_parallel": "3"}, PathRank("rank", 1)),
        ({"pipeline_parallel": "2", "tensor_parallel": "03"}, PathRank("mesh", 0, (2, 0, 0, 3))),
        ({"step": "1"}, None),
    ],
)
def test_rank_in_a_path_counts_before_device_and_process(
    fields: dict[str, str], path_rank: PathRank | None
) -> None:
    assert PathRank.of(fields) == path_rank


def test_ranks_are_counted_over_the_places_in_the_mesh() -> None:
    places = [
        PathRank("mesh", 0, (stage, 0, data, tensor))
        for stage in range(2)
        for data in range(3)
        for tensor in range(4)
    ]
    ranks = Ranks(places[::-1], {}, [])
    assert [ranks.resolve(place) for place in places] == [(rank, "path") for rank in range(24)]
    assert ranks.lowest == 0


def test_user_comes_before_the_table_and_the_table_before_the_device() -> None:
    tables = [table(("3", "11"), ("4", "12"))]
    assert Ranks([DEVICE_3], {3: 7}, tables).resolve(DEVICE_3) == (7, "rank map")
    assert Ranks([DEVICE_3], {4: 7}, tables).resolve(DEVICE_3) == (11, "rank table")
    assert Ranks([DEVICE_3], {}, []).resolve(DEVICE_3) == (3, "device id")


def test_tables_tell_how_many_ranks_there_are_on_all_hosts() -> None:
    tables = [table(("0", "0"), ("1", "1")), table(("0", "2"), ("1", "3"))]
    assert Ranks([DEVICE_3], {}, tables).expected == 4
    assert Ranks([DEVICE_3], {}, [b"{}"]).expected is None


def test_table_of_several_hosts_is_no_answer_but_a_problem() -> None:
    ranks = Ranks([DEVICE_3], {}, [table(("3", "11"), ("4", "1")), table(("3", "19"))])
    assert ranks.resolve(DEVICE_3) == (3, "device id")
    assert ranks.resolve(PathRank("device", 4)) == (1, "rank table")
    (problem,) = ranks.problems
    assert "several ranks for device 3" in problem.reason
    assert "--rank-map" in problem.hint


def test_table_of_a_cluster_is_read(dumps: DumpLibrary) -> None:
    content = (dumps["synthetic-text"] / "hccl/hccl.json").read_bytes()
    resolved = [Ranks([], {}, [content]).resolve(PathRank("device", device)) for device in (0, 1)]
    assert {source for _, source in resolved} == {"rank table"}


@pytest.mark.parametrize("number", [0.5, float("inf"), float("nan"), True, None, [1], "one", "9" * 5000])
def test_what_is_not_a_whole_number_makes_no_table(number: object) -> None:
    assert Ranks([], {}, [table((number, 0))]).expected is None
    assert Ranks([], {}, [table((0, number))]).expected is None


@given(
    st.binary(max_size=60) | st.builds(table, st.tuples(st.integers() | st.text(), st.integers() | st.text()))
)
def test_any_content_is_a_table_or_not(content: bytes) -> None:
    rank, _ = Ranks([DEVICE_3], {}, [content]).resolve(DEVICE_3)
    assert 0 <= rank < 1_000_000


# Tensor files beside a dump are named, and those of the dump and of stores are not.


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The directory of a job: a dump, a checkpoint two levels down, a store, and logs."""
    for path in (
        "job/run/dump/rank_0/Net/0/1/Mul.op.0.0.1.output.0.DefaultFormat.Float32.npy",
        "job/run/last/model.safetensors",
        "job/mine/a/b/x.pt",
        "job/store.zarr/zarr.json",
        "job/store.zarr/rank_0/x.npy",
        "job/logs/log.txt",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    return tmp_path / "job"


def test_what_a_dump_that_is_found_below_leaves_is_named(job: Path) -> None:
    root = find_dump(job).root
    assert root == job / "run" / "dump"
    assert tensors_beside(job, root) == (job / "mine", job / "run" / "last")
    assert tensors_beside(job / "run", root) == (job / "run" / "last",)


def test_a_dump_that_is_named_has_nothing_beside_it(job: Path) -> None:
    root = job / "run" / "dump"
    assert tensors_beside(root, root) == ()
    assert tensors_beside(root / "rank_0", root) == ()
