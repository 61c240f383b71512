"""What `ingest.record` refuses, and where it writes."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ingest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": "all"}, "what='all' is not known"),
        ({"of": "losses"}, "of='losses' is not known"),
        ({"of": ["inputs", "losses"]}, "of='losses' is not known"),
        ({"advance": "epoch"}, "advance='epoch' is not known"),
        ({"when_full": "drop"}, "when_full='drop' is not known"),
        ({"compiled": "yes"}, "compiled='yes' is not known"),
        ({"every": 0}, "every=0 is less than 1"),
        ({"every": "2"}, "every='2' is not a whole number"),
        ({"every": 1.5}, "every=1.5 is not a whole number"),
        ({"steps": 3}, "steps=3 is not a list of steps"),
        ({"steps": "1"}, "steps='1' is not a list of steps"),
        ({"steps": [0.5]}, "steps: 'float' object cannot be interpreted as an integer"),
        ({"of": ()}, "of is empty"),
        ({"modules": ["0"]}, r"modules=\['0'\] is not a pattern"),
        ({"queue_nbytes": 0}, "queue_nbytes=0 is less than 1"),
        ({"first_step": -1}, "first_step=-1 is less than 0"),
        ({"mesh": {"tp": 1}}, "mesh: tp=1 is not a place and a size"),
        ({"mesh": {"tp": (2, 2)}}, r"mesh: tp=\(2, 2\) is not a place and a size"),
        ({"mesh": {"data": (0, 2)}}, "mesh: no axis 'data'"),
        ({"mesh": 3}, "mesh: has no names of axes"),
    ],
)
def test_an_argument_that_cannot_be_used_is_named(
    options: dict[str, Any], message: str, nets: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(ingest.UsageError, match=message) as error:
        ingest.record(nets.Net(), tmp_path, **options)
    assert error.value.hint
    assert list(tmp_path.iterdir()) == []


def test_without_pytorch_the_error_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ingest.UsageError, match="needs PyTorch, which is not installed") as error:
        ingest.record(object(), tmp_path)
    assert error.value.hint == "pip install 'dump-ingest[torch]'"


def test_the_directory_tells_rank_and_places(
    nets: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "5")
    mesh = {"tp": (1, 2), "pp": (0, 1), "dp": (2, 4)}
    recorder = ingest.record(nets.Net(), tmp_path, mesh=mesh)
    assert recorder.directory == tmp_path / "recorded/rank_5.tp_rank_1_of_2.dp_rank_2_of_4"


def test_no_directory_is_refused(nets: ModuleType) -> None:
    with pytest.raises(ingest.UsageError, match="None is not a directory"):
        ingest.record(nets.Net(), None)  # type: ignore[arg-type]
