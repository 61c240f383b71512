"""Configurations of dumps as values, and how they are read."""

import pytest

from ingest.dump_configs.check import check_text
from ingest.dump_configs.model import Io, Match, OperatorPattern, read_acl
from tests.guide_configs import mindspore, msprobe

# Which operators an entry of a configuration chooses.


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        (OperatorPattern("Default/net/Log-op0", Match.NAME), True),
        (OperatorPattern("Default/net/Log-op1", Match.NAME), False),
        (OperatorPattern("log", Match.TYPE), True),
        (OperatorPattern("conv", Match.TYPE), False),
        (OperatorPattern("name-regex(Default/.+)", Match.REGEX, "Default/.+"), True),
        (OperatorPattern("name-regex(Gradients/.+)", Match.REGEX, "Gradients/.+"), False),
        (OperatorPattern("name-regex(()", Match.REGEX, "("), False),
        (OperatorPattern("net_Log", Match.PART), True),
    ],
)
def test_an_entry_chooses_an_operator_by_the_name_in_the_store(
    pattern: OperatorPattern, *, chosen: bool
) -> None:
    assert pattern.matches("Log", "Default_net_Log-op0") is chosen


# What a configuration asks for.


def test_what_is_asked_for_is_read() -> None:
    sampled = mindspore({"sample_mode": 1}, saved_data="full", iteration="all", support_device=[1])
    asked = check_text(sampled, "config").asked
    assert asked is not None
    assert (asked.steps, asked.devices) == (None, frozenset([1]))
    assert (asked.sample, asked.saved) == (100, "elements and statistics")
    probed = check_text(msprobe({"list": ["relu"]}, step=[0, "4-6"], rank=[1]), "config").asked
    assert probed is not None
    assert (probed.steps, probed.devices) == (frozenset([0, 4, 5, 6]), frozenset([1]))
    assert probed.operators is not None
    assert probed.operators[0].matches("Torch.relu", "Torch.relu.0.forward")


@pytest.mark.parametrize(
    ("content", "steps", "operators"),
    [
        ({"dump_step": "0|3-5"}, {0, 3, 4, 5}, None),
        ({"dump_list": [{"model_name": "Net", "layer": ["a", "b"]}]}, None, ["a", "b"]),
        ({"dump_list": [{"model_name": "A", "layer": ["a"]}, {"model_name": "B"}]}, None, None),  # all of B
    ],
)
def test_acl_is_asked_for_layers_unless_a_model_is_whole(
    content: dict[str, object], steps: set[int] | None, operators: list[str] | None
) -> None:
    asked = read_acl({"dump": content})
    assert asked.steps == (None if steps is None else frozenset(steps))
    assert (asked.operators and [pattern.text for pattern in asked.operators]) == operators
    assert asked.io is Io.OUTPUTS


@pytest.mark.parametrize(
    "text",
    [
        mindspore(input_output=[0], op_debug_mode={}),
        msprobe({"data_mode": [["all"]]}),
        '{"dump": {"dump_path": "/d", "dump_mode": {}}}',
        "config.dump_config.dump_mode = []",
    ],
    ids=["mindspore", "msprobe", "acl", "torchair"],
)
def test_a_value_of_another_kind_is_refused_and_read_as_if_it_were_not_there(text: str) -> None:
    checked = check_text(text, "config")
    assert checked.refused
    assert checked.asked is not None
    assert checked.asked.io is Io.BOTH
