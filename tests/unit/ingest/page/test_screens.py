"""What each screen says, and where it leads."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

import ingest
from bench.steps import commit_run
from ingest.page.asking import ASKED, Arguments
from ingest.page.library import Library, Moment
from ingest.page.views import SCREENS, compare
from ingest.questions.compare.result import ComparedStep, Comparison, GuessedName, OperatorGap, Programs, Why
from ingest.reader.dump_store import open_store
from ingest.wiring.consolidation import consolidate
from tests.made_runs import Values
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT, Config, simulate, write
from tests.unit.ingest.page.conftest import links, screen, words
from workers.errors import UsageError
from workers.model import StepKey

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
