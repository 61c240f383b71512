"""What `doctor` says of the configuration that lies in a dump."""

import json
from pathlib import Path

from ingest.doctor.checks import check_configuration
from tests.dumps import DumpLibrary


def write(root: Path, **changes: object) -> None:
    common = {
        "dump_mode": 0,
        "path": "/dump",
        "net_name": "Net",
        "iteration": "all",
        "input_output": 0,
        "kernels": [],
        "support_device": [0],
        **changes,
    }
    directory = root / "rank_0" / ".dump_metadata"
    directory.mkdir(parents=True)
    (directory / "data_dump.json").write_text(
        json.dumps({"common_dump_settings": common, "e2e_dump_settings": {}})
    )
    (directory / "config.json").write_text('{"device_target": "CPU", "ms_version": "2.10.0"}')


def test_a_real_dump_has_a_good_configuration(dumps: DumpLibrary) -> None:
    (check,) = check_configuration(dumps["nan-log-2rank"] / "dump")
    assert (check.ok, check.check) == (True, "dump configuration")


def test_what_is_wrong_is_said_for_the_version_and_device_of_the_dump(tmp_path: Path) -> None:
    write(tmp_path, saved_data="statistic")
    (check,) = check_configuration(tmp_path)
    assert not check.ok
    assert "statistics are not supported on CPU" in check.detail
    assert "dump-ingest check" in check.hint
    (tmp_path / "rank_0/.dump_metadata/data_dump.json").write_text("{")
    (check,) = check_configuration(tmp_path)
    assert (check.ok, "is not JSON" in check.detail) == (False, True)
