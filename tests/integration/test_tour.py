"""`make tour`: what a newcomer clicks through is there, and is gone afterwards."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.tour import RULES


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  (of the tour itself)
        body: bytes = answer.read()
        return body.decode()


@pytest.mark.dask
@pytest.mark.slow
def test_every_address_answers_and_ctrl_c_ends_it_all(tmp_path: Path) -> None:
    words = ["--directory", str(tmp_path / "tour"), "--every", "0.5", "--healthy", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.tour", *words], stdout=subprocess.PIPE, text=True, bufsize=1
    ) as tour:
        assert tour.stdout is not None
        try:
            said = ""
            while not re.search(r"rank 1 step [2-9]", said):
                line = tour.stdout.readline()
                assert line, said
                said += line
            urls = re.findall(r"http://\S+", said)
            assert len(urls) >= 4
            for url in urls:
                assert get(url)
            if prometheus := re.search(r"(http://[\d.:]+)\S*/alerts", said):
                rules = json.loads(get(f"{prometheus[1]}/api/v1/rules"))["data"]["groups"]
                assert {group["file"] for group in rules} == {str(RULES)}
                listing = f"{prometheus[1]}/api/v1/targets"
                for _ in range(60):
                    targets = json.loads(get(listing))["data"]["activeTargets"]
                    if [target["health"] for target in targets] == ["up"] * 5:
                        break
                    time.sleep(0.25)
                assert {target["health"] for target in targets} == {"up"}
                assert len(targets) == 5
        finally:
            tour.send_signal(signal.SIGINT)
        tour.wait(40)
        assert tour.returncode == 0
    assert (tmp_path / "tour" / "run.zarr" / "rank_1" / "step_2" / "zarr.json").exists()
    with pytest.raises(OSError):  # noqa: PT011  (whatever says that nobody listens)
        get(urls[-1])


def test_make_has_it() -> None:
    assert re.search(
        r"^tour: .*\n\t.*-m tests\.tour$", (RULES.parents[2] / "Makefile").read_text(), re.MULTILINE
    )
