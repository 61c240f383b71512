"""What msProbe would refuse or ignore in its `config.json`."""

import pytest

from ingest.dump_configs.checking.check import check_text
from ingest.dump_configs.model import Severity
from tests.guide_configs import assert_named, msprobe

R, W = Severity.REFUSED, Severity.WARNING
WRONG = [
    ('{"task": "tensors", "dump_path": "/d"}', R, "task: 'tensors' is not one of"),
    ('{"task": "tensor", "level": "L1"}', R, "dump_path: is missing"),
    ('{"task": "tensor", "dump_path": "/d"}', W, "the section tensor is missing"),
    (msprobe(level="L3"), R, "level: 'L3' is not one of"),
    (msprobe(rank=1), R, "rank: must be a list"),
    (msprobe(step=["6-4"]), R, "step: '6-4' is neither a step up to 1000000 nor a range"),
    (msprobe({"scope": ["Torch.relu.0.forward"]}), R, "scope: must have two names"),
    (msprobe({"scope": ["relu", "add"]}), R, "scope: relu is not the whole name"),
    (msprobe({"data_mode": ["all", "input"]}), R, "data_mode: all cannot be combined"),
    (msprobe({"data_mode": ["gradient"]}), R, "tensor.data_mode: 'gradient' is not one of"),
    (msprobe({"summary_mode": "sha1"}), R, "summary_mode: 'sha1' is not a statistic"),
    (msprobe({"summary_mode": "statistics"}, async_dump=True), R, "list: is empty, which async_dump"),
    (msprobe({"list": ["Torch.relu.0.forward"]}, async_dump=True), R, "md5 is not possible with async_dump"),
    (msprobe({"diff_nums": 0}), R, "diff_nums: must be -1 or at least 1"),
    (msprobe({"list": ["name-regex(Default/.+)"]}), W, "is a regular expression"),
    (msprobe({"list": ["Torch.relu"]}), W, "Torch.relu is not the whole name of a call"),
    (msprobe({"diff_nums": -2}), R, "diff_nums: must be -1 or at least 1"),
    (msprobe({"slice": [{"dim": 0, "size": -1}]}), R, "slice: {'dim': 0, 'size': -1} is not an object of"),
    (msprobe({"summary_mode": ["max"]}), W, "summary_mode: a list is for MindSpore"),
    (msprobe(step=[2_000_000]), R, "step: 2000000 is neither a step up to 1000000"),
    (msprobe(async_dump=None), R, "async_dump: must be true or false, not None"),
    ('{"dump_path": "/d", "level": "L1"}', W, "task: is missing"),
    ('{"task": "diff_check", "dump_path": "/d", "level": "L2"}', W, "task: must be tensor at level L2"),
    (msprobe(level="L2"), W, "list: must have exactly one name at level L2"),
    (msprobe({"tensor_list": ["relu"]}), W, "tensor_list: is for the task statistics"),
    ('{"task": "structure", "dump_path": "/d", "level": "L1"}', W, "level: is taken as mix"),
    (
        '{"task": "nan_check", "dump_path": "/d", "level": "L0"}',
        R,
        "level: must be L1 for the task nan_check",
    ),
]


@pytest.mark.parametrize(("text", "severity", "reason"), WRONG, ids=[reason for *_, reason in WRONG])
def test_a_wrong_configuration_is_named_with_the_reason(text: str, severity: Severity, reason: str) -> None:
    assert_named(text, severity, reason)


@pytest.mark.parametrize(
    "text",
    [
        msprobe({"scope": None, "list": None, "slice": None}, rank=None, step=None, risk_level=None),
        '{"task": "overflow_check", "dump_path": "/d", "overflow_check": {"list": [3], "scope": 4}}',
    ],
    ids=["null", "section of a former task"],
)
def test_what_msprobe_takes_is_not_refused(text: str) -> None:
    assert not check_text(text, "config").refused
