"""URLs hold the whole state of a view, whatever the names in it."""

from urllib.parse import parse_qs, unquote, urlsplit

from ingest.page.links import Links

HOSTILE = 'a/b?c&d=#"<é>%2F'


def test_a_name_with_any_characters_stays_one_part_of_the_path() -> None:
    url = urlsplit(Links("/dumps", HOSTILE).view("tensor", name=HOSTILE, step=0, graph="", rank=None))
    assert unquote(url.path) == f"/dumps/runs/{HOSTILE}/tensor"
    assert url.path.count("/") == 4
    assert parse_qs(url.query) == {"name": [HOSTILE], "step": ["0"]}


def test_the_base_path_is_in_every_url() -> None:
    links = Links("/dumps").of_run("a.zarr")
    assert links.home() == "/dumps/"
    assert links.asset("page.js") == "/dumps/static/page.js"
    assert links.api("steps", rank=1) == "/dumps/api/v1/runs/a.zarr/steps?rank=1"
    assert Links("", "a.zarr").view("live") == "/runs/a.zarr/live"
