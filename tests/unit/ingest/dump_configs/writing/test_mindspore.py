"""The `data_dump.json` that MindSpore is given."""

import json
from dataclasses import replace

import pytest

from ingest.dump_configs.model import WrittenConfig
from ingest.dump_configs.writing import write_config
from tests.dump_requests import REQUEST
from workers.errors import UsageError


def common(config: WrittenConfig) -> dict[str, object]:
    content: dict[str, object] = json.loads(config.text)["common_dump_settings"]
    return content


def test_mindspore_is_told_names_and_expressions() -> None:
    config = write_config("mindspore", REQUEST)
    settings = common(config)
    assert settings["kernels"] == ["Default/net/Log-op0", "name-regex(Default.net.Cast-op11)"]
    assert (settings["dump_mode"], settings["iteration"], settings["support_device"]) == (1, "8-9", [1])
    assert json.loads(config.text)["e2e_dump_settings"] == {"enable": True, "trans_flag": True}
    assert (config.ranks, config.notes) == ((1,), ())


def test_mindspore_on_cpu_dumps_every_rank_and_says_so() -> None:
    config = write_config("mindspore", replace(REQUEST, device="CPU"))
    assert config.ranks == (0, 1)
    assert config.notes == ("On CPU every rank dumps: MindSpore ignores support_device there.",)


def test_old_mindspore_dumps_a_type_if_it_cannot_be_told_the_name() -> None:
    config = write_config("mindspore", replace(REQUEST, version="2.0.0"))
    assert common(config)["kernels"] == ["Default/net/Log-op0", "Cast"]
    assert "no regular expressions" in config.notes[0]


def test_former_settings_of_mindspore_are_kept_and_sampling_is_not() -> None:
    former = {
        "common_dump_settings": {"net_name": "Big Net", "initial_iteration": 10, "saved_data": "statistic"},
        "e2e_dump_settings": {"enable": False, "trans_flag": False, "sample_mode": 1, "sample_num": 100},
    }
    config = write_config("mindspore", replace(REQUEST, former=former, job_ranks=tuple(range(16))))
    settings = common(config)
    assert (settings["net_name"], settings["initial_iteration"], settings["saved_data"]) == (
        "Big_Net",
        10,
        "tensor",
    )
    assert json.loads(config.text)["e2e_dump_settings"] == {"enable": False, "trans_flag": False}
    assert "modulo 8" in config.notes[0]


def test_a_directory_that_mindspore_would_refuse_is_refused_here() -> None:
    with pytest.raises(UsageError, match="refuses this directory") as error:
        write_config("mindspore", replace(REQUEST, directory="/data/my.dump"))
    assert error.value.hint
