"""The page in a real Chromium: from an alert to values, without an error or a foreign request."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.page.rendering import asset, number, whole
from ingest.questions.compare.html import to_html
from tests.page_server import RunningPage
from tests.servers.browser import Chromium
from tests.stores import DumpLibrary, MadeDump, ingest_directly, tensor_name
from workers.rules.schema import load_rules

RUN = "/runs/nan.zarr"
LOG = "Log.Default_net-LogLoss_Log-op0.output.0"
EVIL = "<img src=x onerror=alert(1)>"
VIEWS = (
    "incidents",
    "layout?step=2",
    "audit",
    "audit?step=2",
    "matrix",
    "matrix?stat=l2_norm",
    "cell?rank=1&step=2&name=Log*",
    f"tensor?rank=1&step=2&name={LOG}",
    "live",
    "compare?with=again.zarr&step=2",
)


@pytest.fixture(scope="module")
def runs(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run with a NaN, the same again, and a run whose names are markup."""
    root = tmp_path_factory.mktemp("page") / "runs"
    root.mkdir()
    ingest_directly(dumps["nan-log-2rank"] / "dump", root / "nan.zarr", rules=load_rules().enabled)
    shutil.copytree(root / "nan.zarr", root / "again.zarr")
    evil = MadeDump(root.parent / "dump")
    evil.root.mkdir()
    evil.add(np.array([1, np.nan], np.float32), tensor_name(f"{EVIL}.net"), step=1)
    ingest_directly(evil.root, root / "evil.zarr")
    return root


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[RunningPage]:
    with RunningPage(runs) as running:
        yield running


def test_from_an_incident_to_the_values(server: RunningPage, chromium: Chromium) -> None:
    with chromium.visit(server.url) as visitor:
        page = visitor.page
        visitor.go("/")
        page.get_by_role("link", name="nan.zarr").click()
        assert page.get_by_role("heading", name=re.compile("NaN born in Log")).is_visible()
        page.get_by_role("link", name="output 0").first.click()
        page.locator(".values td.bad").first.wait_for()
        assert page.locator(".values td.bad").all_inner_texts() == ["NaN", "NaN"]
        page.get_by_role("link", name=re.compile("ReduceMean")).first.click()
        page.wait_for_url(re.compile("ReduceMean"))
        page.keyboard.press("]")
        page.wait_for_url(re.compile("step=3"))
        page.keyboard.press("g")
        page.keyboard.press("m")
        page.wait_for_url(re.compile("/matrix"))
        assert visitor.complaints == []


def test_a_cell_opens_by_pointer_and_by_keys_and_a_range_by_dragging(
    server: RunningPage, chromium: Chromium
) -> None:
    with chromium.visit(server.url) as visitor:
        page = visitor.page
        visitor.go(f"{RUN}/matrix")
        page.locator("#matrix[data-ready=true]").wait_for()
        box = page.locator("#matrix svg").bounding_box()
        assert box is not None
        cell = (box["x"] + 64 + 112 + 50, box["y"] + 8 + 44 + 20)
        page.mouse.move(*cell)
        assert page.locator("#cell").inner_text().startswith("rank 1, step 2: 7 NaN and Inf")
        page.mouse.click(*cell)
        page.wait_for_url(re.compile(r"cell\?rank=1&step=2"))
        visitor.go(f"{RUN}/matrix")
        page.locator("#matrix[data-ready=true]").focus()
        for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
            page.keyboard.press(key)
        page.wait_for_url(re.compile(r"cell\?rank=1&step=3"))
        visitor.go(f"{RUN}/matrix")
        page.locator("#matrix[data-ready=true]").wait_for()
        page.mouse.move(*cell)
        page.mouse.down()
        page.mouse.move(cell[0] + 112, cell[1])
        page.mouse.up()
        page.wait_for_url(re.compile("ranks=1-1&steps=2-3"))
        assert visitor.complaints == []


def test_a_phone_shows_all_steps_of_the_matrix_and_finds_the_cell_under_the_finger(
    server: RunningPage, chromium: Chromium
) -> None:
    with chromium.visit(server.url, narrow=True) as visitor:
        page = visitor.page
        visitor.go(f"{RUN}/matrix")
        page.locator("#matrix[data-ready=true]").wait_for()
        box = page.locator("#matrix svg").bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 390
        last = (box["x"] + box["width"] - 20, box["y"] + 8 + 44 + 20)
        page.mouse.move(*last)
        assert page.locator("#cell").inner_text().startswith("rank 1, step 3: 7 NaN and Inf")
        page.set_viewport_size({"width": 1280, "height": 800})
        page.wait_for_timeout(100)
        wide = page.locator("#matrix svg").bounding_box()
        assert wide is not None
        assert wide["width"] == 64 + 3 * 112 + 8


def test_a_phone_shows_names_without_a_space_in_several_lines(tmp_path: Path, chromium: Chromium) -> None:
    made = MadeDump(tmp_path / "dump")
    made.root.mkdir()
    made.add(np.ones(2, np.float32), tensor_name(f"{'e' * 190}.op1"), step=1)
    ingest_directly(made.root, tmp_path / "names.zarr")
    with RunningPage(tmp_path) as own, chromium.visit(own.url, narrow=True) as visitor:
        for view in ("cell?rank=0&step=1", f"tensor?rank=0&step=1&name={'e' * 190}.op1.output.0", "matrix"):
            visitor.go(f"/runs/names.zarr/{view}")
            assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 390, view


def test_the_script_writes_numbers_as_the_server_does(server: RunningPage, chromium: Chromium) -> None:
    numbers = [0.0, -1.0, 999_999.0, 1e6, 123456.7, 999999.6, -0.00012345678, 9.999996e-5, 1.7e308, 5e-324]
    source = re.findall(r"^function written\(.*?^}", asset("page.js").decode(), re.DOTALL | re.MULTILINE)[0]
    with chromium.visit(server.url) as visitor:
        written = visitor.page.evaluate(
            f"numbers => {{ {source}; return numbers.map(number => written(number)) }}", numbers
        )
        count = visitor.page.evaluate(f"number => {{ {source}; return written(number, true) }}", 1_234_567)
    assert written == [number(value) for value in numbers]
    assert count == whole(1_234_567)


@pytest.mark.parametrize("narrow", [False, True], ids=["wide-light", "narrow-dark"])
def test_every_view_fits_and_is_accessible(server: RunningPage, chromium: Chromium, narrow: bool) -> None:
    """axe-core takes a second or more for a view, so each is examined once, in either colours."""
    with chromium.visit(server.url, narrow=narrow, dark=narrow) as visitor:
        for place, view in enumerate(("/", *(f"{RUN}/{view}" for view in VIEWS))):
            visitor.go(view)
            width = visitor.page.evaluate("document.documentElement.scrollWidth")
            assert width <= (390 if narrow else 1280), view
            assert place % 2 == narrow or visitor.faults() == [], view
        assert visitor.complaints == []


def test_names_that_are_markup_do_nothing(server: RunningPage, chromium: Chromium) -> None:
    with chromium.visit(server.url) as visitor:
        visitor.page.on("dialog", lambda dialog: visitor.complaints.append(dialog.message))
        for view in ("incidents", "cell?rank=0&step=1", "live", "matrix?stat=max"):
            visitor.go(f"/runs/evil.zarr/{view}")
            assert visitor.page.locator("img[src=x]").count() == 0
        visitor.go("/runs/evil.zarr/cell?rank=0&step=1")
        visitor.page.get_by_role("link", name="output 0").click()
        assert EVIL in visitor.page.locator("h1").inner_text()
        assert visitor.complaints == []


def test_the_page_follows_the_store_and_says_if_it_is_away(
    runs: Path, tmp_path: Path, chromium: Chromium
) -> None:
    store = tmp_path / "nan.zarr"
    shutil.copytree(runs / "nan.zarr", store)
    (store / "rank_0" / "step_3").rename(tmp_path / "later")
    (store / "rank_1" / "step_3").rename(tmp_path / "latest")
    with RunningPage(store, refresh_s=0) as own, chromium.visit(own.url) as visitor:
        page = visitor.page
        visitor.go(f"{RUN}/live")
        assert page.locator("h1").inner_text() == "Step 2"
        (tmp_path / "later").rename(store / "rank_0" / "step_3")
        page.get_by_role("heading", name="Step 3").wait_for(timeout=60_000)
        store.rename(tmp_path / "away")
        page.locator("#away").wait_for(timeout=60_000)
        assert "not there any more" in page.locator("#away").inner_text()
        (tmp_path / "away").rename(store)
        page.locator("#away").wait_for(state="hidden", timeout=60_000)


def test_who_uses_keys_keeps_the_chosen_cell_when_a_step_is_committed(
    runs: Path, tmp_path: Path, chromium: Chromium
) -> None:
    store = tmp_path / "nan.zarr"
    shutil.copytree(runs / "nan.zarr", store)
    (store / "rank_1" / "step_3").rename(tmp_path / "later")
    with RunningPage(store, refresh_s=0) as own, chromium.visit(own.url) as visitor:
        page = visitor.page
        visitor.go(f"{RUN}/matrix")
        page.locator("#matrix[data-ready=true]").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        assert page.locator("#cell").inner_text().startswith("rank 1, step 2: 7 NaN and Inf")
        (tmp_path / "later").rename(store / "rank_1" / "step_3")
        page.locator("main.is-new #matrix[data-ready=true]").wait_for(timeout=60_000)
        assert page.evaluate("document.activeElement.id") == "matrix"
        page.keyboard.press("ArrowRight")
        assert page.locator("#cell").inner_text().startswith("rank 1, step 3: 7 NaN and Inf")
        assert visitor.complaints == []


def test_a_view_needs_no_script(server: RunningPage, chromium: Chromium) -> None:
    with chromium.visit(server.url, scripts=False) as visitor:
        visitor.go(f"{RUN}/matrix")
        visitor.page.get_by_role("link", name=re.compile("operators of rank 1, step 2")).click()
        assert visitor.page.get_by_role("heading", name="Rank 1, step 2").is_visible()


def test_a_report_shows_itself_without_a_server(runs: Path, tmp_path: Path, chromium: Chromium) -> None:
    path = tmp_path / "report.html"
    path.write_text(ingest.report(ingest.open_store(runs / "nan.zarr")), "utf-8")
    with chromium.visit(f"file://{path}") as visitor:
        visitor.go("")
        assert visitor.page.get_by_role("heading", name=re.compile("NaN born in Log")).is_visible()
        # The stylesheet in it applies.
        background = visitor.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == "rgb(246, 246, 243)"
        assert visitor.faults() == []
        assert visitor.complaints == []


def test_the_page_of_a_comparison_fits_is_accessible_and_sorts_by_keys(
    runs: Path, tmp_path: Path, chromium: Chromium
) -> None:
    nan = runs / "nan.zarr"
    path = tmp_path / "comparison.html"
    comparison = ingest.compare(f"{nan}@0,2", f"{nan}@1,2")
    path.write_text(to_html(comparison), "utf-8")
    numbers = [tensor.number for tensor in comparison.tensors]
    for narrow in (False, True):
        with chromium.visit(f"file://{path}", narrow=narrow, dark=narrow) as visitor:
            visitor.go("")
            page = visitor.page
            assert page.evaluate("document.documentElement.scrollWidth") <= (390 if narrow else 1280)
            if narrow:
                assert visitor.faults() == []
            page.get_by_role("button", name="order").focus()
            place = page.locator("#tensors thead th").all_inner_texts().index("order")
            for how, first in (("descending", f"{max(numbers)}"), ("ascending", f"{min(numbers)}")):
                page.keyboard.press("Enter")
                assert page.locator(f"th[aria-sort={how}]").inner_text() == "order"
                assert page.locator("#tensors tbody tr").first.locator("td").nth(place).inner_text() == first
            page.get_by_label("filter").fill("ReduceMean")
            shown = page.locator("#tensors tbody tr:visible")
            assert 0 < shown.count() < 20
            assert visitor.complaints == []
