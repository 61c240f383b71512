"""What a worker says when it ends."""

import logging

import pytest

from workers.plugin import IngestPlugin


@pytest.mark.parametrize(("said", "told"), [("ConnectionPool is closed", 0), ("something else", 1)])
def test_a_heartbeat_that_the_end_overtook_is_not_told(
    said: str, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    IngestPlugin().setup(None)  # type: ignore[arg-type]
    logging.getLogger("tornado.application").error("Exception in callback", exc_info=RuntimeError(said))
    assert len(caplog.records) == told
