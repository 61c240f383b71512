"""What `gc --recompress` prints: the steps and bytes in question, before anything changes."""

import json

import pytest

from ingest.cli.gc_recompress import _say_plan
from ingest.store_gc.recompress import RecompressPlan
from workers.model import StepKey


def test_a_plan_is_told_in_words_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    _say_plan(RecompressPlan((StepKey(0, 1),), 2**20), json=False)
    told = capsys.readouterr()
    assert "1 step to encode again, with 1.0 MiB of tensors." in told.err + told.out
    _say_plan(RecompressPlan((StepKey(0, 1),), 2**20), json=True)
    assert json.loads(capsys.readouterr().out) == {"steps": [{"rank": 0, "step": 1}], "nbytes": 2**20}
