"""Incidents: what is one, and where it is found."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import ingest
from tests import rule_sets
from tests.damages import flip, only
from tests.origin_runs import BAD, CLEAN, GOOD, INF
from tests.replicas import Replicas
from tests.stores import DumpLibrary, MadeDump, MadeRun, ingest_directly, unpack
from workers.errors import UsageError
from workers.model import StepKey
from workers.rules.schema import load_rules
from workers.rules.values import RuleSet
from workers.store.opening import open_objects, resolve

# The incidents of real dumps with NaN, and of runs made by hand.


RULES = load_rules().enabled
DRIFT = rule_sets.only(kind="drift", distance_gt=1)
POSITIVE = "logarithm of a number that is not positive (2 of 24 elements)"


def incidents_of(dump: Path, store: Path, *, consolidated: bool = True) -> ingest.Incidents:
    ingest_directly(dump, store, rules=RULES)
    if consolidated:
        ingest.consolidate(store)
    return ingest.incidents(ingest.open_store(store))


def test_a_nan_is_one_incident_on_the_rank_where_it_began(nan: Path, dumps: DumpLibrary) -> None:
    """By the count of who made the dump."""
    truth = json.loads((dumps["nan-log-2rank"] / "truth.json").read_text())
    born = truth["origin"]["rank_1"]["nan_born_in"]
    tensors = sum(iteration["tensors_with_nan"] for iteration in truth["iterations"].values())
    answer = ingest.incidents(ingest.open_store(nan))
    (incident,) = answer.incidents
    assert (incident.kind, incident.severity, incident.rank) == ("nan", "critical", 1)
    assert (incident.op_type, incident.op_name) == (born["op_type"], born["op_name"])
    assert (incident.first_step, incident.last_step, incident.steps) == (born["iteration"], 3, 2)
    assert (incident.ranks, incident.tensors) == ((1,), tensors)
    assert (incident.rules, incident.findings) == ({"nan": 10, "loss_not_finite": 4}, 14)
    assert incident.summary == "NaN born in Log (Default_net-LogLoss_Log-op0) on rank 1, step 2"
    assert incident.store == str(nan)
    assert incident.origin is not None
    assert incident.origin.op_name == born["op_name"]
    assert answer.by_severity == {"critical": 1}
    assert (answer.not_evaluated, answer.left_out, answer.damaged) == ((), (), ())


@pytest.fixture(scope="module")
def torch_dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What tools of the PyTorch world wrote."""
    into = tmp_path_factory.mktemp("pt")
    unpack("pt/pytorch-world", into)
    unpack("pt/pytorch-logs", into)
    return into


@pytest.mark.parametrize(
    ("name", "kind", "operator", "reason", "steps", "ranks"),
    [
        ("nan-log-2rank-next/dump", "nan", "Log", POSITIVE, (2, 2), (1,)),
        ("pt/pytorch-world/sglang-dumper-nan-dp2/dump", "nan", "Module.rescale", "", (1, 2), (1, 0)),
        ("mindspore-2.7.1-cpu-sync/types", "nan", "ReLU", "", (2, 2), (0,)),
        ("msprobe-26.2.0-pytorch-cpu/tensor-mix", "nan", "Torch.where", "", (0, 0), (0,)),
        ("pt/pytorch-logs/nvdlfw-stats/dump", "inf", "Module", "", (3, 3), (0,)),
        (
            "nan-sqrt-2rank/dump",
            "nan",
            "Sqrt",
            "square root of a negative number (2 of 24 elements)",
            (2, 3),
            (1, 0),
        ),
        (
            "inf-explode-1rank/dump",
            "inf",
            "Mul",
            "product beyond the largest float32, 3.40282e+38",
            (2, 3),
            (0,),
        ),
        ("nan-mask-1rank/dump", "nan", "Sub", "infinity minus infinity (6 of 72 elements)", (3, 3), (0,)),
    ],
)
def test_every_real_dump_with_nan_has_one_critical_incident(  # noqa: PLR0917  (parameters of a table)
    name: str,
    kind: str,
    operator: str,
    reason: str,
    steps: tuple[int, int],
    ranks: tuple[int, ...],
    dumps: DumpLibrary,
    torch_dumps: Path,
    store: Path,
) -> None:
    """The operator is that of `truth.json` and `oracle.json`; a reason, if its definition is known."""
    archive, _, path = name.partition("/")
    answer = incidents_of((torch_dumps / path if archive == "pt" else dumps[archive] / path), store)
    (incident,) = [incident for incident in answer.incidents if incident.severity == "critical"]
    assert (incident.kind, incident.op_type) == (kind, operator)
    assert (incident.rank, incident.ranks) == (ranks[0], tuple(sorted(ranks)))
    assert incident.reason.startswith(reason)
    assert bool(incident.reason) == bool(reason)
    assert (incident.first_step, incident.last_step) == steps


def test_a_mask_is_told_as_harmless(dumps: DumpLibrary, store: Path) -> None:
    answer = incidents_of(dumps["nan-mask-1rank"] / "dump", store, consolidated=False)
    (mask,) = [incident for incident in answer.incidents if incident.severity == "info"]
    assert (mask.kind, mask.first_step, mask.last_step) == ("inf", 1, 2)
    assert mask.summary.endswith("harmless, for what read it gave finite numbers")


def test_the_id_stays_when_later_steps_arrive(made: MadeDump, store: Path) -> None:
    """Also if the next step is clean: then `origin` takes it for an overflow that loss scaling skipped."""
    run = MadeRun(made)
    ids = []
    for step, values in enumerate((CLEAN, BAD, BAD, CLEAN, BAD)):
        run.op("Log.log-op0", [GOOD], [values], step=step)
        run.op("Neg.neg-op1", [values], [values], step=step)
        answer = incidents_of(made.root, store, consolidated=False)
        ids.append([incident.id for incident in answer.incidents if incident.severity == "critical"])
    (first,) = ids[1]
    assert ids[:4] == [[], [first], [first], [first]]
    assert len(ids[4]) == 2
    assert ids[4][0] == first
    spans = [(incident.first_step, incident.last_step) for incident in answer.incidents]
    assert spans == [(1, 2), (4, 4)]


def test_nan_is_an_incident_without_any_rule(dumps: DumpLibrary, store: Path) -> None:
    ingest_directly(dumps["nan-log-2rank"] / "dump", store)
    answer = ingest.incidents(ingest.open_store(store))
    (incident,) = answer.incidents
    assert (incident.op_type, incident.tensors, incident.findings) == ("Log", 10, 0)
    assert answer.not_evaluated[0].startswith("rank 0, steps 1-3: no rules were evaluated")


def test_infinity_that_stays_is_an_incident(made: MadeDump, store: Path) -> None:
    run = MadeRun(made)
    run.op("Exp.exp-op0", [GOOD], [GOOD * INF])
    (incident,) = incidents_of(made.root, store, consolidated=False).incidents
    assert (incident.kind, incident.op_type, incident.tensor) == ("inf", "Exp", "Exp.exp-op0.output.0")


def test_incidents_are_chosen_by_rank_step_and_severity(nan: Path) -> None:
    store = ingest.open_store(nan)
    assert len(ingest.incidents(store, rank=1, step=3, severity="critical").incidents) == 1
    assert ingest.incidents(store, step=1).incidents == ()
    assert ingest.incidents(store, rank=0).incidents == ()
    with pytest.raises(UsageError, match="fatal"):
        ingest.incidents(store, severity="fatal")
    with pytest.raises(UsageError, match="7"):
        ingest.incidents(store, rank=7)


def test_damage_that_hides_an_origin_is_named(nan: Path, tmp_path: Path) -> None:
    """The totals of the commit show that there is NaN, even if nobody can read where it began."""
    store = tmp_path / "run.zarr"
    shutil.copytree(nan, store)
    for step in (2, 3):
        flip(only(store, f"rank_1/step_{step}/*/index/labels/c/0/0"))
    answer = ingest.incidents(ingest.open_store(store))
    (incident,) = (incident for incident in answer.incidents if incident.kind == "nan")
    assert "where it began is not known: rank 1 step 2: damaged: " in incident.summary
    assert [left.key for left in answer.left_out] == [StepKey(1, 2), StepKey(1, 3)]


def test_a_rule_that_could_not_be_evaluated_is_named_once(dumps: DumpLibrary, tmp_path: Path) -> None:
    (cast,), (drift,) = rule_sets.only(kind="cast", format="e4m3", overflow_gt=0).rules, DRIFT.rules
    rules = RuleSet((replace(cast, name="cast"), drift), "0")
    store = tmp_path / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store, rules=rules)
    rule_sets.consolidated(open_objects(resolve(store, {})), rules)
    first, second = ingest.incidents(ingest.open_store(store)).not_evaluated
    why = r"rule cast: steps 1-3; at first in rank 0 step 1: \d+ tensors have no histogram"
    assert re.fullmatch(why, first)
    assert second == "rule mine: steps 1-3; at first in step 1: no tensor has a histogram"


def test_replicas_that_were_not_compared_are_named_once() -> None:
    replicas = Replicas()
    for step in range(3):
        replicas.put(0, step, {"Adam.w.input.0": step})
        replicas.put(1, step, {"Adam.w.input.0": step}, status="partial" if step else "complete")
    rule_sets.consolidated(replicas.objects, rule_sets.only(kind="divergence"))
    assert ingest.incidents(replicas.store).not_evaluated[-1] == (
        "replicas not compared: steps 1-2; at first in step 1: rank 1 step 1: partial"
    )


def test_an_incident_is_as_severe_as_the_worst_that_its_rule_was() -> None:
    """New rules apply to later steps."""
    replicas = Replicas()
    for step, severity in ((1, "info"), (2, "critical"), (3, "warning")):
        rule_sets.put(replicas.objects, [[1]] * (step + 1))
        rule = rule_sets.only(kind="unchanged", steps=2, include="*Grad*", severity=severity)
        rule_sets.consolidated(replicas.objects, rule)
    (incident,) = ingest.incidents(replicas.store).incidents
    assert (incident.severity, incident.first_step, incident.steps) == ("critical", 1, 3)


# An incident as it is printed.


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
