"""Which operators an entry of a configuration chooses."""

import pytest

from ingest.dump_configs.model import Match, OperatorPattern


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
