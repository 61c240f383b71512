"""Which operators an entry of a configuration chooses."""

import pytest

from ingest.dump_configs.model import AskedDump, Io, Match, OperatorPattern, flatten, version_numbers


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


@pytest.mark.parametrize(
    ("io", "label", "included"),
    [
        (Io.BOTH, "output", True),
        (Io.INPUTS, "input.1", True),
        (Io.INPUTS, "output", False),
        (Io.OUTPUTS, "output", True),
    ],
)
def test_inputs_and_outputs_are_told_apart(io: Io, label: str, *, included: bool) -> None:
    assert io.includes(label) is included


def test_what_is_saved_is_said_in_words() -> None:
    assert AskedDump(statistics=True).saved == "elements and statistics"
    assert AskedDump(tensors=False).saved == "nothing"


def test_versions_and_names_are_read_as_they_come() -> None:
    assert version_numbers("2.10.0") == (2, 10, 0)
    assert version_numbers("") == ()
    assert flatten("Default/a.b c") == "Default_a_b_c"
