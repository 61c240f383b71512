"""Everything in a picture is escaped."""

from ingest.page.drawing.svg import picture, tag


def test_text_and_attributes_are_escaped() -> None:
    assert tag("text", "<b>&", class_='"x"', data_name="'<") == (
        '<text class="&#34;x&#34;" data-name="&#39;&lt;">&lt;b&gt;&amp;</text>'
    )


def test_a_picture_says_what_it_is() -> None:
    drawn = picture(10.0, 5.25, [tag("rect", x=1)], "two <bars>")
    assert drawn.startswith('<svg viewBox="0 0 10 5.25"')
    assert "<title>two &lt;bars&gt;</title>" in drawn
    assert 'role="img"' in drawn
