"""An incident as it is printed."""

from dataclasses import replace
from pathlib import Path

import ingest


def test_an_incident_has_a_headline_a_source_line_its_extent_and_its_rules(nan: Path) -> None:
    (incident,) = ingest.incidents(ingest.open_store(nan)).incidents
    lines = str(incident).splitlines()
    assert lines[0] == f"critical  {incident.id}  {incident.summary}"
    assert lines[1].startswith("  /srv/train/nan_train.py:45  return -(self.log(")
    assert lines[2] == "  logarithm of a number that is not positive (2 of 24 elements)"
    assert lines[3].startswith("  rank 1, steps 2-3, 10 tensors, host ")
    assert lines[-1] == "  rules: nan 10, loss_not_finite 4"


def test_steps_with_gaps_and_many_rules_are_told_as_such(nan: Path) -> None:
    (incident,) = ingest.incidents(ingest.open_store(nan)).incidents
    rules = {f"rule_{number}": number for number in range(7)}
    lines = str(replace(incident, last_step=9, ranks=(0, 1), rules=rules)).splitlines()
    assert "ranks 0-1, steps 2-9 (2 of them), " in lines[3]
    assert lines[-1].endswith("rule_4 4, and 2 more")
