"""What ACL would refuse or ignore in its JSON."""

from typing import Any

import pytest

from ingest.dump_configs.checking.check import check_text
from ingest.dump_configs.model import Severity
from tests.guide_configs import BLACKLIST, RANGE, WATCHER, acl, assert_named


def blacklisted(entries: list[dict[str, Any]]) -> str:
    return acl(dump_list=[{"optype_blacklist": entries}], dump_level="op")


R, W = Severity.REFUSED, Severity.WARNING
WRONG = [
    ('{"dump": {"dump_mode": "all"}}', R, "dump_path: is missing or empty"),
    (acl(dump_path="/a b"), R, "dump_path: '/a b' has a character"),
    (acl(dump_path="192.168.0.1:"), R, "names a host and no directory"),
    (acl(dump_mode="both"), R, "dump_mode: 'both' is not one of"),
    (acl(dump_step="1-2-3"), R, "dump_step: '1-2-3' is neither"),
    (acl(dump_step="|".join(map(str, range(101)))), R, "more than 100 groups"),
    (acl(dump_step="8-5"), W, "the range '8-5' does not rise"),
    (acl(dump_level="layer"), R, "dump_level: 'layer' is not one of"),
    (acl(dump_debug="on"), R, "dump_list: must be empty if dump_debug is on"),
    (acl(dump_data="stats", dump_stats=[]), R, "dump_stats: is empty"),
    (acl(dump_stats=["Max"]), R, "dump_stats: needs dump_data: stats"),
    (acl(dump_list=[RANGE]), R, "opname_range: needs dump_level: op"),
    (acl(dump_list=[{"layer": []}]), W, "layer: is empty: this model is left out"),
    (acl(dump_list=None), W, "dump_op_switch is off: nothing is dumped"),
    (acl(WATCHER, dump_mode="all"), R, "dump_mode: must be output in the scene watcher"),
    (acl(WATCHER, dump_op_switch="on"), R, "watcher and dump_op_switch exclude each other"),
    (acl(WATCHER, dump_debug="on"), R, "watcher and dump_debug exclude each other"),
    (acl(WATCHER, dump_list=[{"layer": ["A"]}]), W, "the scene watcher dumps nothing"),
    (acl(WATCHER, dump_scene="watch"), R, "dump_scene: 'watch' is not one of"),
    (acl(dump_debug="on", dump_list=None, dump_op_switch="on"), R, "dump_op_switch: and dump_debug exclude"),
    (acl(dump_list=[{"opname_blacklist": BLACKLIST}]), W, "need dump_level: op, and are ignored"),
    (blacklisted([{"name": "conv", "pos": ["in0"]}]), W, "pos: 'in0' of a blacklist is neither"),
    (blacklisted([{"name": "", "pos": ["input0"]}]), W, "the entry is ignored"),
    (blacklisted(BLACKLIST * 101), R, "more than 100 entries"),
    (acl(dump_list=[{"model_name": "a"}, {"model_name": "a"}]), W, "model_name: 'a' is named twice"),
    (acl(dump_kernel_data="printf,time"), W, "dump_kernel_data: 'time' is not one of all"),
    (acl(dump_scene="lite_exception", dump_op_switch=None), W, "the scene lite_exception exclude each other"),
]


@pytest.mark.parametrize(("text", "severity", "reason"), WRONG, ids=[reason for *_, reason in WRONG])
def test_a_wrong_configuration_is_named_with_the_reason(text: str, severity: Severity, reason: str) -> None:
    assert_named(text, severity, reason)


def test_a_variable_of_the_environment_counts_more_than_the_path_of_a_scene(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = acl(dump_scene="lite_exception", dump_list=None, dump_op_switch=None)
    assert check_text(text, "acl.json").findings == ()
    monkeypatch.setenv("ASCEND_WORK_PATH", "/work")
    assert_named(text, W, "dump_path: is ignored: ASCEND_WORK_PATH is set")
