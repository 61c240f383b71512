"""The generated dashboard."""

import json

from deploy.grafana.make_dashboard import PATH, dashboard


def test_the_dashboard_is_current() -> None:
    assert json.loads(PATH.read_text()) == dashboard()


def test_each_query_of_a_panel_has_a_letter_and_each_panel_a_number() -> None:
    panels = dashboard()["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    for panel in panels:
        letters = [target["refId"] for target in panel.get("targets", [])]
        assert letters == sorted(set(letters))
