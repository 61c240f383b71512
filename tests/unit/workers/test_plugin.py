"""What the plugin changes in a worker."""

import logging
import subprocess
import sys

import pytest

from workers.plugin import IngestPlugin


@pytest.mark.parametrize(("message", "records"), [("ConnectionPool is closed", 0), ("something else", 1)])
def test_the_error_of_a_heartbeat_that_the_end_overtook_is_not_logged(
    message: str, records: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    IngestPlugin().setup(None)  # type: ignore[arg-type]
    # Starting workers of one's own silences it for the process.
    monkeypatch.setattr(logging.getLogger("tornado.application"), "level", logging.ERROR)
    logging.getLogger("tornado.application").error("Exception in callback", exc_info=RuntimeError(message))
    assert len(caplog.records) == records


def test_a_process_that_only_registers_the_plugin_loads_no_codecs() -> None:
    """Its start would take half a second longer."""
    code = "import sys, workers.plugin; print([n for n in ('numcodecs', 's3fs', 'zarr') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
