"""Take pictures of the page, of real dumps, in a real Chromium.

    python -m tests.pictures              those of the documentation, into docs/images
    python -m tests.pictures DIRECTORY    each screen wide and narrow, light and dark, and as it prints

Both exit with 1 and name the screens on which the browser complained, or which are wider than its window.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

import ingest
from ingest.page.watchers import Watchers
from tests.page_server import RunningPage
from tests.servers.browser import Chromium, Visitor
from tests.services import served_watcher
from tests.sharded_net import LAYOUT, Config, simulate, write
from tests.stores import MadeDump, ingest_directly, tensor_name, unpack
from workers.rules.schema import load_rules

IMAGES = Path(__file__).parents[1] / "docs" / "images"
#: The width at which GitHub and the documentation show a picture.
_WIDTH = 960
_COLOURS = 256
_LOG = "Log.Default_net-LogLoss_Log-op0.output.0"
_LOG_STATE = f"rank=1&step=2&name={_LOG}"
_WEIGHT = "Parameter.net_l2_weight.output.0"
_EVIL = "<img src=x onerror=alert(1)>\u202e\u202dnet"
_MISTAKE = frozenset({"BUG missing reduction"})
_LOOKS = (
    ("wide-light", False, False),
    ("wide-dark", False, True),
    ("narrow-light", True, False),
    ("narrow-dark", True, True),
)
_LONG = "pretraining-2026-11-22T22-13-59-seed-17-second-attempt-after-the-change-of-the-optimizer.zarr"


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture of the documentation."""

    name: str
    path: str
    scroll_to: str = ""
    """The element at its top; "" for the top of the page."""
    is_phone: bool = False
    """Narrow and dark."""
    height: int = 800


DOCUMENTED = (
    Shot("page-incident", "/runs/nan-log.zarr/incidents"),
    Shot("page-matrix", "/runs/nan-log.zarr/matrix", height=580),
    Shot("page-operators", "/runs/nan-log.zarr/cell?rank=1&step=2&stat=l2_norm"),
    Shot("page-tensor", f"/runs/nan-log.zarr/tensor?{_LOG_STATE}"),
    Shot(
        "page-exponents",
        f"/runs/nan-log.zarr/tensor?rank=1&step=1&name={_WEIGHT}",
        scroll_to=".columns",
        height=650,
    ),
    Shot("page-phone", f"/runs/nan-log.zarr/tensor?{_LOG_STATE}", is_phone=True),
    Shot(
        "page-spread", "/runs/nan-sqrt.zarr/incidents", scroll_to="h3:has-text('How it spread')", height=620
    ),
    Shot("page-two-runs", "/runs/nan-log.zarr/compare?with=nan-sqrt.zarr&rank=1&step=2&over=1"),
)
SCREENS = {
    "runs": "/",
    "incidents": "/runs/nan-log.zarr/incidents",
    "incidents-sqrt": "/runs/nan-sqrt.zarr/incidents",
    "incidents-of-a-step": "/runs/nan-log.zarr/incidents?rank=0&step=1",
    "incidents-none": "/runs/clean.zarr/incidents",
    "incidents-damaged": "/runs/damaged.zarr/incidents",
    "incidents-sharded": "/runs/sharded.zarr/incidents",
    "layout": "/runs/sharded.zarr/layout?step=1",
    "layout-fine": "/runs/nan-log.zarr/layout?step=1",
    "audit": "/runs/sharded.zarr/audit?ask=1",
    "audit-unasked": "/runs/nan-log.zarr/audit",
    "trend": "/runs/nan-log.zarr/trend?name=Log.*",
    "incidents-names": "/runs/names.zarr/incidents",
    "matrix": "/runs/nan-log.zarr/matrix",
    "matrix-statistic": "/runs/nan-log.zarr/matrix?stat=l2_norm",
    "matrix-damaged": "/runs/damaged.zarr/matrix",
    "cell": "/runs/nan-log.zarr/cell?rank=1&step=2",
    "cell-bad": "/runs/nan-log.zarr/cell?rank=1&step=2&bad=1",
    "cell-names": "/runs/names.zarr/cell?rank=0&step=1",
    "cell-partial": "/runs/damaged.zarr/cell?rank=0&step=2",
    "tensor": f"/runs/nan-log.zarr/tensor?{_LOG_STATE}",
    "tensor-over": f"/runs/nan-log.zarr/tensor?{_LOG_STATE}&over=1&stat=mean",
    "tensor-weight": f"/runs/nan-log.zarr/tensor?rank=1&step=1&name={_WEIGHT}",
    "tensor-whole": f"/runs/nan-log.zarr/tensor?rank=1&step=1&name={_WEIGHT}&placement=replicated",
    "tensor-empty": "/runs/clean.zarr/tensor?rank=0&step=1&name=Empty.op1.output.0",
    "tensor-scalar": "/runs/clean.zarr/tensor?rank=0&step=1&name=Scalar.op2.output.0",
    "tensor-damaged": f"/runs/damaged.zarr/tensor?rank=1&step=2&name={_LOG}",
    "two-runs": "/runs/nan-log.zarr/compare?with=nan-sqrt.zarr&rank=1&step=2&over=1",
    "two-runs-of-shards": "/runs/sharded.zarr/compare?with=unsharded.zarr",
    "two-runs-unchosen": "/runs/nan-log.zarr/compare",
    "live": "/runs/nan-log.zarr/live",
    "live-damaged": "/runs/damaged.zarr/live",
    "live-empty": "/runs/empty.zarr/live",
    "live-long-name": f"/runs/{_LONG}/live",
    "incidents-empty": "/runs/empty.zarr/incidents",
    "matrix-empty": "/runs/empty.zarr/matrix",
    "error-no-rank": "/runs/nan-log.zarr/cell?rank=9&step=2",
    "error-damaged": "/runs/damaged.zarr/cell?rank=0&step=3",
    "error-no-run": "/runs/nothing.zarr/incidents",
}


def build(root: Path, dumps: Path) -> None:
    """Ingest what the screens are about: runs below `root`, of dumps that are unpacked below `dumps`."""
    rules = load_rules().enabled
    for name in ("nan-log", "nan-sqrt"):
        dump = unpack(f"{name}-2rank", dumps) / "dump"
        ingest_directly(dump, root / f"{name}.zarr", rules=rules, sketches=True)
        ingest.consolidate(root / f"{name}.zarr")
    ingest_directly(unpack("lenet-1rank", dumps) / "dump", root / "lenet.zarr", rules=rules, sketches=True)
    for name, config in (("unsharded", Config()), ("sharded", Config(tp=2, flags=_MISTAKE))):
        write(dumps / name, simulate(config))
        ingest_directly(dumps / name, root / f"{name}.zarr", rules=rules, layout=LAYOUT, sketches=True)
    _made(dumps / "clean", root / "clean.zarr", {"Empty.op1": np.zeros(0), "Scalar.op2": np.float32(3)})
    _made(
        dumps / "names",
        root / "names.zarr",
        {f"{_EVIL}.op1": np.array([1, np.nan]), f"{'e' * 110}.op2": np.ones(3)},
    )
    ingest_directly(unpack("longnames-1rank", dumps) / "dump", root / _LONG, rules=rules)
    shutil.copytree(root / "nan-log.zarr", root / "damaged.zarr")
    (root / "damaged.zarr" / "rank_0" / "step_3" / "zarr.json").write_bytes(b"{")
    shutil.rmtree(root / "damaged.zarr" / "rank_1" / "step_1")
    for chunk in (root / "damaged.zarr" / "rank_1" / "step_2").rglob("c/*"):
        if chunk.is_file():
            chunk.write_bytes(b"not what was written")
    shutil.copytree(root / "clean.zarr", root / "empty.zarr")
    shutil.rmtree(root / "empty.zarr" / "rank_0")


def _made(dump: Path, store: Path, arrays: dict[str, object]) -> None:
    dump.mkdir()
    made = MadeDump(dump)
    for name, values in arrays.items():
        made.add(np.asarray(values, np.float32), tensor_name(name), step=1)
    ingest_directly(dump, store, rules=load_rules().enabled)


@contextmanager
def served(directory: Path) -> Iterator[RunningPage]:
    """Serve all runs, with a watcher that has not ingested the last step of one of them yet."""
    runs, dumps = directory / "runs", directory / "dumps"
    runs.mkdir()
    dumps.mkdir()
    build(runs, dumps)
    with ExitStack() as stack:
        url, service = stack.enter_context(
            served_watcher(dumps / "nan-log-2rank" / "dump", runs / "nan-log.zarr")
        )
        service.tick()
        yield stack.enter_context(RunningPage(runs, refresh_s=60, watchers=Watchers((url,))))


def open_view(visitor: Visitor, path: str) -> None:
    """Open a path, and wait for what the script fetches."""
    visitor.go(path)
    visitor.page.wait_for_load_state("networkidle")


def take_documented(page: RunningPage, chromium: Chromium) -> list[str]:
    """Take the pictures of the documentation, and return what the browser complained about."""
    complaints = []
    for shot in DOCUMENTED:
        with chromium.visit(page.url, narrow=shot.is_phone, dark=shot.is_phone) as visitor:
            open_view(visitor, shot.path)
            size = {"width": 390, "height": 844} if shot.is_phone else {"width": 1280, "height": shot.height}
            visitor.page.set_viewport_size(size)  # type: ignore[arg-type]
            if shot.scroll_to:
                place = "element => window.scrollTo(0, element.getBoundingClientRect().top - 70)"
                visitor.page.locator(shot.scroll_to).first.evaluate(place)
            (IMAGES / f"{shot.name}.png").write_bytes(small(visitor.page.screenshot()))
            complaints += [f"{shot.name}: {complaint}" for complaint in visitor.complaints]
    return complaints


def small(png: bytes) -> bytes:
    """Return a picture of a screen at the width of documents, in few colours."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    if picture.width > _WIDTH:
        height = round(picture.height * _WIDTH / picture.width)
        picture = picture.resize((_WIDTH, height), Image.Resampling.LANCZOS)
    packed = io.BytesIO()
    few = picture.quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(packed, "PNG", optimize=True)
    return packed.getvalue()


def take_all(page: RunningPage, chromium: Chromium, into: Path, only: str) -> list[str]:
    """Take every screen in each of its looks, and return what is wrong with any of them."""
    wrong = []
    into.mkdir(parents=True, exist_ok=True)
    for look, narrow, dark in _LOOKS:
        for name, path in SCREENS.items():
            if only not in name:
                continue
            with chromium.visit(page.url, narrow=narrow, dark=dark) as visitor:
                open_view(visitor, path)
                visitor.page.screenshot(path=into / f"{name}-{look}.png", full_page=True)
                width = visitor.page.evaluate("document.documentElement.scrollWidth")
                wrong += [f"{name}, {look}: {width} pixels wide"] * (width > (390 if narrow else 1280))
                if not name.startswith("error"):
                    wrong += [f"{name}, {look}: {complaint}" for complaint in visitor.complaints]
                if look == "wide-light":
                    visitor.page.pdf(path=into / f"{name}.pdf", format="A4", prefer_css_page_size=True)
    return wrong


def main(words: list[str]) -> int:
    """Take pictures, and print what is wrong with any of them."""
    with tempfile.TemporaryDirectory() as directory, served(Path(directory)) as page, Chromium() as chromium:
        if words:
            wrong = take_all(page, chromium, Path(words[0]), "".join(words[1:2]))
        else:
            wrong = take_documented(page, chromium)
    print("\n".join(wrong))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
