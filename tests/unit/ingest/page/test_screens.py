"""What each screen says and shows, of stores at one moment."""

from __future__ import annotations

import asyncio
import base64
import math
import re
import shutil
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

import ingest
from bench.steps import CountingStore, commit_run, commit_tables, make_tables
from ingest.page import library as module
from ingest.page import sheet as sheets
from ingest.page.asking import ASKED, Arguments, matrix_asked
from ingest.page.charts import (
    ExponentCounts,
    Series,
    matrix_picture,
    overlay,
    ribbon_picture,
    tag,
    timeline_picture,
)
from ingest.page.library import Library, Moment, Overview
from ingest.page.server import MOST_UNDER_WAY, PageBusy, SharedAnswers
from ingest.page.sheet import MAX_SIDE, Image, image_of, parse_window, window
from ingest.page.views import SCREENS, compare
from ingest.page.watchers import Refreshed
from ingest.questions.compare.result import ComparedStep, Comparison, GuessedName, OperatorGap, Programs, Why
from ingest.questions.matrix import DAMAGED, KNOWN, MISSING, PARTIAL, Matrix
from ingest.reader.dump_store import open_store
from ingest.reader.tensor import Tensor
from ingest.wiring.consolidation import consolidate
from tests.page_server import RunningPage
from tests.sharded_net import LAYOUT, Config, simulate, write
from tests.stores import MadeDump, Values, ingest_directly, tensor_name
from tests.unit.ingest.page.conftest import links, screen, words
from workers.arrays.histogram import Histogram
from workers.errors import DamagedStore, StoreError, UsageError
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import CHANGED
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve
from workers.store.record import WithoutTensors

# What each screen says, and where it leads.


LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


def of(store: Path) -> Moment:
    return Moment.of(open_store(store))


@pytest.mark.parametrize(
    "url",
    [
        "cell?rank=9&step=2",
        "cell?rank=1&step=9",
        "cell?rank=1&step=2&stat=nonsense",
        "matrix?ranks=x",
        "matrix?steps=99",
        "matrix?stat=nonsense",
        "incidents?id=nothing",
        "audit?step=99",
    ],
)
def test_what_is_not_there_is_refused(moment: Moment, url: str) -> None:
    with pytest.raises(UsageError):
        screen(moment, url)


def test_operators_come_in_order_and_the_first_bad_one_is_linked(moment: Moment) -> None:
    got = screen(moment, "cell?rank=1&step=2")
    total = re.search(r"(\d+) operators, (\d+) with NaN or Inf", words(got))
    assert total is not None
    assert f'data-total="{total[1]}"' in got.text
    assert 0 < int(total[2]) < int(total[1])
    assert "Log is the first operator here with a bad output" in words(got)
    (place,) = {url.partition("#")[2] for url in links(got, "cell") if "#" in url}
    assert re.search(rf'id="{place}" class="is-bad">.*?Log', got.text, re.DOTALL)
    only = screen(moment, "cell?rank=1&step=2&bad=1")
    assert f"{total[2]} operators" in words(only)


def test_a_tensor_leads_to_its_neighbours_and_to_itself_elsewhere(moment: Moment) -> None:
    got = screen(moment, f"tensor?rank=1&step=2&name={LOG}")
    told = words(got)
    assert "2 of 24 elements. First:" in told
    assert "Histogram" in told
    assert "NaN or Inf" in told.partition("Read by")[2].partition("The operator")[0]
    elsewhere = {key: url for url, key in re.findall(r'quiet" href="([^"]*)" data-key="(.)"', got.text)}
    assert "step=1" in elsewhere["["]
    assert "step=3" in elsewhere["]"]
    assert "rank=0" in elsewhere["-"]
    assert re.search("l2_norm over the steps.*rank 0 rank 1", told)


@pytest.mark.parametrize(
    ("values", "has_histogram", "has_exponents"),
    [
        (np.arange(12, dtype="<f4").reshape(3, 4), True, True),
        (np.full(5, 3, "<i8"), True, True),
        (np.array([np.nan, np.inf], "<f4"), False, False),
        (np.array([1 + 2j, 4], "<c8"), False, True),
        (np.array([True, False]), True, False),
    ],
    ids=["floats", "constant", "nothing finite", "complex", "booleans"],
)
def test_values_have_pictures_as_far_as_they_have_an_order(
    made: MadeDump, store: Path, values: Values, *, has_histogram: bool, has_exponents: bool
) -> None:
    made.add(values, tensor_name("Mul.m"))
    ingest_directly(made.root, store)
    told = words(screen(of(store), "tensor?rank=0&step=0&name=Mul.m.output.0"))
    assert ("Histogram" in told, "Signs and binary exponents" in told) == (has_histogram, has_exponents)


def test_exponents_losses_and_channels_come_from_sketches(made: MadeDump, store: Path) -> None:
    """A tensor with a column that stands out, and a small one; names hold signs of globs."""
    values = np.random.default_rng(0).standard_normal((300, 260)).astype("<f4")
    values[:, 100] *= 1e6
    made.add(values, tensor_name("Mul.m[1]"))
    made.add(np.ones(3, "<f4"), tensor_name("Mul.m[1]", slot=1))
    ingest_directly(made.root, store, sketches=True)
    got = screen(of(store), f"tensor?rank=0&step=0&name={quote('Mul.m[1].output.0')}")
    told = words(got)
    assert "Signs and binary exponents" in told
    assert re.search(r" float16 (?:[\d.]+ to )?[\d.]+ % .* bfloat16 0 ", told)
    assert re.search(r"Channels that stand out .* outlier 1 100 ", told)
    assert "dump-ingest precision" in got.lines[0]
    assert "dump-ingest outliers" in got.lines[0]


def test_a_card_has_the_origin_its_reason_and_the_steps_that_it_touches(moment: Moment) -> None:
    got = screen(moment, "incidents")
    told = words(got)
    assert "NaN born in Log" in told
    assert "logarithm of a number that is not positive" in told
    assert "Before and after" in told
    assert "Which elements, and why" in told
    card = got.text.partition("<article")[2].partition("</article>")[0]
    assert card.count('class="mark"') == 2 + 1  # two steps, and the legend
    assert "/cell?rank=1&amp;step=2" in card
    (identity, *_) = re.findall(r'id="incident-(\w+)"', got.text)
    alone = screen(moment, f"incidents?id={identity}")
    assert alone.text.count("<article") == 1
    assert "dump-ingest origin" in alone.lines[0]
    before = screen(moment, "incidents?step=1&rank=0")
    assert "No incident No NaN, Inf or overflow in rank 0, step 1" in words(before)
    assert "--step 1" in before.lines[0]


def test_a_divergence_shows_what_ranks_hold_and_should_not(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    steps = [
        [{f"{kind}.w{n}": rng.normal(size=(4, 3)) for kind in ("param", "exp_avg") for n in "012"}] * 2
        for _ in range(3)
    ]
    steps[2][1] = steps[2][1] | {"exp_avg.w1": steps[1][1]["exp_avg.w1"]}
    write(tmp_path / "dump", steps)
    ingest_directly(tmp_path / "dump", tmp_path / "run.zarr", layout=LAYOUT)
    consolidate(tmp_path / "run.zarr")
    moment = of(tmp_path / "run.zarr")
    found = moment.incidents().incidents
    identity = next(incident.id for incident in found if incident.kind == "divergence")
    what = "What ranks hold and should not"
    assert what not in words(screen(moment, "incidents"))
    assert f"{what} optimizer state out of step" in words(screen(moment, f"incidents?id={identity}"))


@pytest.fixture(scope="module")
def library(nan_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Library:
    """A run, the same again, and one that has only its first step."""
    root = tmp_path_factory.mktemp("runs")
    for name in ("a.zarr", "b.zarr", "short.zarr"):
        shutil.copytree(nan_log, root / name)
    for step in root.glob("short.zarr/rank_*/step_[23]"):
        shutil.rmtree(step)
    return Library(str(root), refresh_s=60)


def compared(library: Library, query: str) -> Any:
    return screen(library.run("a.zarr").moment(), f"compare?{query}", library, "a.zarr")


def test_what_differs_first_is_listed_and_drawn(tmp_path: Path) -> None:
    for name, seed in (("a.zarr", 0), ("b.zarr", 1)):
        commit_run(str(tmp_path / name), [0], range(3), [f"op{number}" for number in range(70)], seed=seed)
    got = compared(Library(str(tmp_path)), "with=b.zarr&over=1")
    assert "Rank 0: 70 tensors in order of execution" in words(got)
    assert "MatMul.op0.output.0 0 " in words(got)
    assert 'data-rows="35"' in got.text
    assert ">tensor</text>" in got.text


def test_gaps_and_guesses_are_rows_that_lead_to_their_runs(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps = (
        OperatorGap("A", "Cast.c[0]", Why.MOVES),
        OperatorGap("B", "MatMul.m", Why.FUSED, "Dense.d"),
    )
    guess = GuessedName("Add.x.*", "Add.y.*", "sequence")
    steps = (ComparedStep(StepKey(0, 1), StepKey(2, 3), {}),)
    made = Comparison("a", "b", steps, (), None, programs=Programs(5, 5, 4, gaps), guesses=(guess,))
    monkeypatch.setattr(compare, "compare", lambda *_, **__: made)
    got = compared(library, "with=b.zarr&step=1")
    told = words(got)
    assert "A ran 5 operators, B 5, and 4 are the same" in told
    assert "Add.x.* Add.y.* guess by sequence" in told
    assert "Cast.c[0] only in A passes elements on as they are" in told
    assert "A does it in Dense.d, or right before" in told
    cells = links(got, "cell")
    assert cells[0].startswith("/runs/a.zarr/cell?rank=0&step=1&name=Cast.c%5B%5B%5D0%5D")
    assert cells[1].startswith("/runs/b.zarr/cell?rank=2&step=3&")


@pytest.mark.parametrize("name", ASKED)
def test_every_question_has_a_form_and_is_asked_on_demand(moment: Moment, name: str) -> None:
    got = screen(moment, name)
    assert "The answer is made when somebody asks" in words(got)
    assert not SCREENS[name].is_slow(Arguments({}))
    assert SCREENS[name].is_slow(Arguments({"ask": "1"}))
    for parameter in SCREENS[name].parameters:
        assert f'name="{parameter.name}"' in got.text


def test_a_question_shows_its_table_and_the_lines_that_ask_the_same(moment: Moment) -> None:
    got = screen(moment, "trend?name=Log.*&stat=max&rank=1")
    assert "Log.Default_net-LogLoss_Log-op0.output.0" in words(got)
    store = moment.store.url
    assert f"dump-ingest trend {store} --name 'Log.*' --stat max --rank 1 --include-partial" in got.lines[0]
    assert "ingest.trend(store, name='Log.*', stat='max', rank=[1], include_partial=True)" in got.lines[1]


def test_a_mistake_that_no_rule_looks_for_leads_to_its_tensor(tmp_path: Path) -> None:
    write(tmp_path / "dump", simulate(Config(1, 2, frozenset({"BUG a gradient is not reduced"}), 1)))
    ingest_directly(tmp_path / "dump", tmp_path / "run.zarr", layout=LAYOUT)
    moment = of(tmp_path / "run.zarr")
    assert links(screen(moment, "incidents"), "layout") == ["/runs/run.zarr/layout?step=0"]
    got = screen(moment, "layout?step=0")
    (finding,) = ingest.layout(moment.store, 0).findings
    assert finding.kind == "missing reduction"
    assert finding.text in words(got)
    assert any(quote(finding.name) in url for url in links(got, "tensor"))
    audited = screen(moment, "audit?ask=1")
    for failure in ingest.audit(moment.store).failures:
        assert failure.name in words(audited)
        assert any(quote(failure.name) in url for url in links(audited, "tensor"))


# Pictures as SVG, and values as PNG.


def test_text_and_attributes_are_escaped() -> None:
    assert tag("text", "<b>&", class_='"x"', data_name="'<") == (
        '<text class="&#34;x&#34;" data-name="&#39;&lt;">&lt;b&gt;&amp;</text>'
    )


@pytest.mark.parametrize("values", [[], [5.0], [math.nan], [1e-300, 1e300], [-1.7e308, 1.7e308], [0, 5e-324]])
def test_whatever_the_values_are_points_lie_in_the_picture(values: list[float]) -> None:
    line = Series("", list(range(len(values))), values, [False] * len(values))
    drawn = overlay("", [line], "all")["picture"]
    places = [float(y) for y in re.findall(r'<circle[^>]* cy="([-\d.]+)"', drawn)]
    assert len(places) == sum(map(math.isfinite, values))
    assert all(0 <= y <= 230 for y in places)


def test_values_and_their_sketch_have_the_same_counts() -> None:
    values = np.array([0.3, -0.3, -5, 6, 0, np.nan, np.inf, 100], np.float32)
    known = ExponentCounts.of_values(values.astype(np.float64))
    assert known == ExponentCounts(-2, [1, 0, 0, 0, 1, 0, 0, 0, 1], [1, 0, 0, 0, 1, 0, 0, 0, 0], 1)
    positive, negative = np.zeros((2, 255), np.int64)
    positive[[125, 129, 133]] = 1
    negative[[125, 129]] = 1
    assert ExponentCounts.of_histogram(Histogram(positive, negative, 1, -5, 100)) == known
    nothing = np.zeros(255, np.int64)
    assert ExponentCounts.of_histogram(Histogram(nothing, nothing, 3, 0, 0)) is None


def counts_of(drawn: str) -> dict[str, int]:
    """Return by colour how many cells have it."""
    return {css: path.count("M") for path, css in re.findall(r'<path d="([^"]*)" class="(\w+)"', drawn)}


def test_every_cell_has_one_colour_and_marks_come_above() -> None:
    state = np.array([[KNOWN, PARTIAL, DAMAGED], [MISSING, KNOWN, KNOWN]])
    values = np.array([[0, 1, 9], [np.nan, 0, 0]])
    ranks, steps = ((0, 0), (1, 1)), ((10, 10), (11, 11), (12, 12))
    bad, gaps = values > 5, (state == MISSING).astype(np.int64)
    matrix = Matrix("made", ranks, steps, values, state, gaps, bad, is_count=True)
    counted = counts_of(matrix_picture(matrix, "a <label>"))
    assert (counted.pop("partial"), counted.pop("damaged")) == (1, 1)
    assert (counted["missing"], counted["zero"], sum(counted.values())) == (1, 3, 6)


def test_one_operator_or_step_among_thousands_is_seen() -> None:
    levels = [0] * 5000
    levels[1234] = 7
    drawn = ribbon_picture(levels, [level == 7 for level in levels], "operators")
    assert counts_of(drawn) == {"zero": 1079, "lv7": 1, "mark": 1}
    boxes = re.findall(r'<rect[^>]* class="(\w+)"', timeline_picture(range(10_000), {7_777}, "steps"))
    assert (len(boxes), boxes.count("mark")) == (180, 1)


def pixels(image: Image | None) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    assert image is not None
    data = base64.b64decode(image.url.partition(",")[2])
    start = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[start - 4 : start])
    lines = zlib.decompress(data[start + 4 : start + 4 + length])
    return np.frombuffer(lines, np.uint8).reshape(image.height, image.width + 1)[:, 1:]


def test_values_that_are_not_finite_have_colours_of_their_own_and_are_not_lost() -> None:
    image = image_of(np.array([[0, np.nan, 1], [np.inf, -np.inf, 0.5]]))
    assert pixels(image).tolist() == [[0, 253, 252], [254, 255, 126]]
    values = np.zeros((3000, 1000))
    values[1234, 567] = np.nan
    shrunk = pixels(image_of(values))
    assert max(shrunk.shape) <= MAX_SIDE
    assert (shrunk == 253).sum() == 1


# Windows on values.


def stored(made: MadeDump, store: Path, values: np.ndarray[Any, Any]) -> Tensor:
    made.add(values, tensor_name())
    ingest_directly(made.root, store)
    return open_store(store).tensors()[0]


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_window_is_a_part_of_the_last_axis_and_of_the_others(
    made: MadeDump, store: Path, order: str
) -> None:
    values = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    tensor = stored(made, store, np.asarray(values, order=order))  # type: ignore[call-overload]
    shown = window(tensor, 5, 1, 4, 3)
    assert shown["rows"] == ["1, 1", "1, 2", "1, 3", "2, 0"]
    assert shown["columns"] == ["1", "2", "3"]
    expected = values.reshape(12, 5)[5:9, 1:4]
    assert [[float(word) for word in line] for line in shown["values"]] == expected.tolist()


@pytest.mark.parametrize(
    ("at_once", "most"),
    [
        (10**6, 20),  # neighbouring rows together, and not all of the first axis
        (12, 10),  # a few rows at once
        (4, 2),  # of long rows, the columns alone
    ],
)
def test_no_more_is_read_than_what_is_shown(
    made: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, most: int
) -> None:
    values = np.arange(300, dtype=np.float32).reshape(1, 60, 5)
    tensor = stored(made, store, values)
    asked = []
    elements = Tensor.elements

    def counted(self: Tensor, start: int, stop: int) -> np.ndarray[Any, Any]:
        asked.append(stop - start)
        return elements(self, start, stop)

    monkeypatch.setattr(Tensor, "elements", counted)
    monkeypatch.setattr(sheets, "_READ_AT_ONCE", at_once)
    shown = window(tensor, 7, 1, 4, 2)
    assert [[float(word) for word in line] for line in shown["values"]] == values[0, 7:11, 1:3].tolist()
    assert max(asked) == most


@pytest.mark.parametrize("text", ["", "3", "1,2,3", "-1,0", "a,b", "1:2:3,0", "20 40,1"])
def test_what_is_not_a_window_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="is not a window") as refused:
        parse_window(text, (3, 4, 5))
    assert "20:40,:10" in refused.value.hint


# A store at one moment, and the statistics that are kept from one to the next.


NAMES = ("op0", "op1")


def commit_steps(store: Path, *steps: int, seed: int = 0) -> CountingStore:
    """Commit steps of two ranks; return the store, which counts what is asked of it from now on."""
    objects = open_objects(resolve(str(store)))
    for step in steps:
        for rank in range(2):
            commit_tables(objects, StepKey(rank, step), make_tables(StepKey(rank, step), NAMES, seed=seed))
    return CountingStore(objects)


def test_later_reads_what_is_new_and_some_of_the_rest(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_READ_AGAIN", 1)
    objects = commit_steps(store, *range(4))
    moment = Moment.of(ingest.DumpStore(objects))
    objects.requests = 0
    assert moment.later() is moment
    assert objects.requests == 2  # the root, and one commit
    commit_steps(store, 4)
    objects.requests = 0
    later = moment.later()
    assert objects.requests == 4
    assert (later.numbers[-1], later.token == moment.token) == (4, False)
    assert later.store.step(1, 4).catalog is later.store
    assert [opened.key for opened in later.steps[:8]] == [opened.key for opened in moment.steps]


def drop_tensors(objects: CountingStore, moment: Moment) -> None:
    committed = moment.store.step(1, 2).commit
    commit.drop_tensors(objects, committed, WithoutTensors("2026-01-01T00:00:00+00:00", "gc", "old"))


def test_a_change_that_nobody_announced_is_noticed_within_a_round(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may change the store by hand, or with a version that did not announce this."""
    monkeypatch.setattr(module, "_READ_AGAIN", 2)
    objects = commit_steps(store, *range(3))
    moment = Moment.of(ingest.DumpStore(objects))
    drop_tensors(objects, moment)
    objects.delete_many([f"{CHANGED}/{name}" for name in objects.children(CHANGED)])
    assert moment.later() is moment
    assert moment.later() is moment
    later = moment.later()
    assert (later.store.step(1, 2).has_tensors, later.token == moment.token) == (False, False)


def commit_values(objects: ObjectStore, *steps: int, seed: int = 0) -> None:
    for step in steps:
        for rank in range(2):
            key = StepKey(rank, step)
            commit_tables(objects, key, make_tables(key, ["op0", "op1"], seed=seed))


def test_only_new_steps_are_read(store: Path) -> None:
    objects = CountingStore(open_objects(resolve(str(store))))
    commit_values(objects, 0, 1)
    moment = Moment.of(ingest.DumpStore(objects))
    first = matrix_asked(moment, Arguments({"stat": "max"}))
    objects.requests = 0
    closer = matrix_asked(moment, Arguments({"stat": "max", "ranks": "1", "steps": "1"}))
    assert objects.requests == 0
    assert closer.values.tolist() == [[first.values[1, 1]]]
    commit_values(objects, 2)
    commit_values(objects, 1, seed=1)
    later = moment.later()
    second = matrix_asked(later, Arguments({"stat": "max"}))
    assert later.fields is moment.fields
    np.testing.assert_array_equal(second.values[:, 0], first.values[:, 0])
    assert (second.values[:, 1] != first.values[:, 1]).all()
    whole = ingest.heatmap(ingest.open_store(store), "*", "max")
    np.testing.assert_array_equal(second.values, whole.values)


# The runs that a page shows, and what the list says of each.


def test_a_store_that_hangs_keeps_no_other_run_waiting(
    nan_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many ask for it: API clients wait for its first answer."""
    for name in ("a.zarr", "b.zarr"):
        (tmp_path / name).symlink_to(nan_log)
    go = threading.Event()

    def opened(url: str) -> ingest.DumpStore:
        if url.endswith("a.zarr"):
            go.wait(60)
        return ingest.open_store(url)

    monkeypatch.setattr(module, "open_store", opened)
    with RunningPage(tmp_path) as page, ThreadPoolExecutor(50) as clients:
        answers = [clients.submit(page.get, "/api/v1/runs/a.zarr/steps") for _ in range(50)]
        deadline = time.monotonic() + 60
        while "a.zarr" not in page.library.opened:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert page.get("/api/v1/runs/b.zarr/steps").status == 200
        assert not any(answer.done() for answer in answers)
        go.set()
        assert {answer.result().status for answer in answers} == {200}


def test_runs_beyond_the_longest_list_are_counted_and_open_by_name(
    nan_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.zarr", "b.zarr", "c.zarr"):
        (tmp_path / name).symlink_to(nan_log)
    (tmp_path / "d").mkdir()
    library = Library(str(tmp_path))
    assert (len(library.names()), library.unlisted) == (3, 0)
    monkeypatch.setattr(module, "MAX_RUNS", 2)
    library = Library(str(tmp_path))
    assert (library.names(), library.unlisted) == (["a.zarr", "b.zarr"], 2)
    assert library.run("c.zarr").moment().numbers == [1, 2, 3]
    for absent in ("d", "..", f"../{tmp_path.name}/c.zarr", "a.zarr/../c.zarr", ""):
        with pytest.raises(UsageError, match="no run"):
            library.run(absent)
    with RunningPage(tmp_path) as page:
        text = page.get("/").text
    assert "2 names after the last of these were not looked at" in text


def test_a_store_that_has_lost_its_root_is_named(nan_log: Path, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    shutil.copytree(nan_log, store)
    (store / "zarr.json").unlink()
    with pytest.raises(DamagedStore, match=r"its zarr\.json is missing") as raised:
        Library(str(store)).names()
    assert "repair" in (raised.value.hint or "")


def of_run(store: Path) -> Overview:
    return Overview.of(ingest.open_store(store))


def test_a_run_is_told_by_its_last_step_and_what_is_not_finite_even_without_rules(nan_log: Path) -> None:
    seen = of_run(nan_log)
    assert (seen.ranks, seen.steps, seen.examined_steps, seen.last_step) == ((0, 1), 3, 3, 3)
    assert (seen.severity, seen.rules, seen.rule_ranks) == ("critical", ("NaN or Inf",), (1,))
    assert seen.rule_steps == (2, 3)
    assert seen.committed_at == max(
        step.commit.record.committed_at for step in ingest.open_store(nan_log).select(step=3)
    )


def test_what_fails_is_read_again_and_the_value_before_stays_if_a_store_is_away() -> None:
    now = [100.0]
    outcomes: list[int | Exception] = [MemoryError(), 1, StoreError("away"), 2]

    def read(_: int | None) -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    value = Refreshed(read, 5, lambda: now[0])
    with pytest.raises(MemoryError):
        value.now()
    seen = []
    for _ in range(3):
        now[0] += 11
        seen.append((value.now(), value.trouble))
    assert seen == [(1, ""), (1, "away"), (2, "")]


# Answers that viewers share, and figures of that.


def test_many_viewers_cost_one_answer() -> None:
    made = []
    go = threading.Event()

    def make() -> bytes:
        go.wait(30)
        made.append(1)
        return b"answer"

    async def look() -> list[bytes]:
        with ThreadPoolExecutor(4) as pool:
            answers = SharedAnswers(pool, pool)
            viewers = [asyncio.create_task(answers.answer("question", make)) for _ in range(20)]
            await asyncio.sleep(0)
            viewers[0].cancel()  # a viewer who leaves does not take it from the others
            go.set()
            return await asyncio.gather(*viewers[1:])

    assert asyncio.run(look()) == [b"answer"] * 19
    assert made == [1]


def test_what_is_kept_is_bounded_and_the_oldest_goes_first() -> None:
    async def look() -> tuple[int, int, int]:
        with ThreadPoolExecutor(1) as pool:
            answers = SharedAnswers(pool, pool, limit=10_000)
            for question in ("a", "b", "a", "c", "a"):
                await answers.answer(question, lambda: bytes(4000))
            made = answers.made
            await answers.answer("b", lambda: bytes(4000))
            await answers.answer("large", lambda: bytes(10_000))
            return made, answers.made, answers.nbytes

    made, made_at_last, nbytes = asyncio.run(look())
    assert (made, made_at_last) == (3, 5)
    assert 8000 < nbytes <= 10_000


def test_questions_that_wait_for_a_thread_are_bounded() -> None:
    async def look() -> tuple[bytes, list[bytes]]:
        gate = threading.Event()

        def make() -> bytes:
            gate.wait(60)
            return b"answer"

        with ThreadPoolExecutor(1) as pool:
            answers = SharedAnswers(pool, pool)
            first = [asyncio.create_task(answers.answer(number, make)) for number in range(MOST_UNDER_WAY)]
            await asyncio.sleep(0)
            with pytest.raises(PageBusy, match="the page is busy"):
                await answers.answer("one more", make)
            shared = asyncio.create_task(
                answers.answer(0, make)
            )  # another viewer of the same asks nothing new
            await asyncio.sleep(0)
            gate.set()
            made = await asyncio.gather(shared, *first)
            return await answers.answer("one more", make), made

    assert asyncio.run(look()) == (b"answer", [b"answer"] * (MOST_UNDER_WAY + 1))


def test_slow_answers_keep_no_others_waiting() -> None:
    async def run() -> bytes:
        gate = threading.Event()

        def slow() -> bytes:
            gate.wait(60)
            return b"slow"

        with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as slow_pool:
            answers = SharedAnswers(pool, slow_pool)
            waiting = [asyncio.create_task(answers.answer(number, slow, is_slow=True)) for number in range(3)]
            await asyncio.sleep(0)
            other = await asyncio.wait_for(answers.answer("other", lambda: b"other"), 60)
            gate.set()
            assert await asyncio.gather(*waiting) == [b"slow"] * 3
            return other

    assert asyncio.run(run()) == b"other"


@pytest.fixture
def answers() -> Iterator[SharedAnswers]:
    with ThreadPoolExecutor(1) as pool:
        yield SharedAnswers(pool, pool, 1000)
