"""The plot for the documentation."""

from pathlib import Path

import pytest

from bench.measure import Measure

FASTER = Measure("ingest", "cp -r", "s", (1.0, 2.0), (3.0, 4.0), floor=2.0)
SLOWER = Measure("ingest", "cp -r", "s", (2.0,), (1.0,), floor=2.0)


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from bench.plot import plot

    plot(tmp_path / "bench.png", [FASTER, SLOWER], "Words.")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
