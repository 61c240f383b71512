"""The `config.json` that msProbe is given."""

import json
from dataclasses import replace

import pytest

from ingest.dump_configs.model import RequestedOperator
from ingest.dump_configs.writing import write_config
from tests.dump_requests import CALL, LAYER, REQUEST
from workers.errors import UsageError


@pytest.mark.parametrize(("operators", "level"), [((CALL,), "L1"), ((LAYER,), "L0"), ((CALL, LAYER), "mix")])
def test_msprobe_is_told_calls(operators: tuple[RequestedOperator, ...], level: str) -> None:
    content = json.loads(write_config("msprobe", replace(REQUEST, operators=operators)).text)
    assert content["tensor"]["list"] == [operator.op_name for operator in operators]
    assert (content["task"], content["level"], content["step"], content["rank"]) == (
        "tensor",
        level,
        [8, 9],
        [1],
    )
    assert content["risk_level"] == "ALL"


def test_msprobe_cannot_be_told_what_it_saves_in_any_case() -> None:
    saved = RequestedOperator("", "", "debug", "activations.0.debug")
    with pytest.raises(UsageError, match=r"activations\.0\.debug"):
        write_config("msprobe", replace(REQUEST, operators=(saved,)))
