"""A configuration is recognised, the examples of the guides pass, and other files are refused."""

from pathlib import Path

import pytest

from ingest.dump_configs.checking.check import check_dump_config, check_text, worst_first
from ingest.dump_configs.model import Severity
from ingest.dump_configs.writing import WRITERS, write_config
from tests.dump_requests import REQUEST_OF
from tests.guide_configs import GUIDES, mindspore
from workers.errors import UsageError


@pytest.mark.parametrize("name", GUIDES)
def test_the_examples_of_the_guides_pass(name: str) -> None:
    checked = check_text(GUIDES[name], name)
    assert checked.to_dict()["ok"] is True
    # msProbe 26.2 refuses a task that its guide still has.
    expected = ["task"] if name == "msProbe, overflow" else []
    assert [finding.key for finding in checked.findings] == expected


@pytest.mark.parametrize("system", WRITERS)
def test_what_next_writes_passes(system: str) -> None:
    config = write_config(system, REQUEST_OF[system])
    checked = check_text(config.text, config.file_name, version="2.10.0", device="Ascend")
    assert (checked.system, checked.findings) == (system, ())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "is not the configuration of a dump system"),
        ('{"a": 1}', "is not the configuration of a dump system"),
        ("nothing", "is not the configuration of a dump system"),
        (b"\xff\xfe\x00", "is not text"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(
    tmp_path: Path, content: str | bytes | None, message: str
) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=message) as error:
        check_dump_config(path)
    assert str(path) in str(error.value)


def test_the_worst_comes_first() -> None:
    findings = check_text(mindspore(path="", dump_mode=1, kernels=["name-regex(()"]), "config").findings
    assert [finding.severity for finding in worst_first(findings)] == [Severity.REFUSED, Severity.WARNING]
    with pytest.raises(UsageError, match="no device 'NPU'"):
        check_dump_config("x", device="NPU")
