"""Where an alert leads."""

from pathlib import Path

import ingest
from ingest.reporting.page_link import incidents_link
from ingest.reporting.webhook import incident_payload
from tests.page_server import RunningPage


def test_an_alert_leads_to_its_incident_on_the_page(nan_log: Path) -> None:
    (incident,) = ingest.incidents(ingest.open_store(nan_log)).incidents
    with RunningPage(nan_log) as page:
        message = incident_payload(incident, f"{page.url}/")
        url = message["alerts"][0]["generatorURL"]
        assert url.startswith(page.url)
        got = page.get(url.removeprefix(page.url))
        assert (got.status, f"Incident {incident.id}" in got.text) == (200, True)


def test_a_rank_and_step_lead_to_the_incidents_that_were_seen_there(nan_log: Path) -> None:
    with RunningPage(nan_log) as page:
        links = [
            incidents_link(page.url, str(nan_log), rank=rank, step=step) for rank, step in ((1, 2), (0, 1))
        ]
        bad, good = (page.get(link.removeprefix(page.url)) for link in links)
    assert "NaN born in Log" in bad.text
    assert "--rank 1 --step 2" in bad.lines[0]
    assert "<h1>No incident</h1>" in good.text
    assert incidents_link("", str(nan_log), rank=1, step=2) == ""


def test_without_a_page_there_is_no_link() -> None:
    assert incidents_link("", "s3://bucket/run.zarr", id="0") == ""
    assert incidents_link("https://page/dumps", "s3://bucket/a b.zarr", id="0f") == (
        "https://page/dumps/runs/a%20b.zarr/incidents?id=0f"
    )
