"""Parameters of a URL are checked, and errors name them."""

import pytest

from ingest.page.arguments import Arguments, UrlParameter
from workers.errors import UsageError

PARAMETERS = (
    UrlParameter("rank", "integer", "The rank.", is_required=True),
    UrlParameter("name", "string", "The name of the tensor."),
    UrlParameter("partial", "boolean", "Also partial steps."),
)


def test_what_is_given_has_its_type_and_the_rest_is_left_out() -> None:
    asked = Arguments.of({"rank": "007", "name": "", "partial": "true"}, PARAMETERS)
    assert (asked.need("rank"), asked.integer("rank"), asked.integer("step")) == (7, 7, None)
    assert (asked.text("name", "*"), asked.flag("partial"), asked.flag("name")) == ("*", True, False)


@pytest.mark.parametrize(
    ("query", "message", "hint"),
    [
        ({}, "rank is missing", "The rank."),
        ({"rank": ""}, "rank is missing", "The rank."),
        ({"rank": "1", "x" * 999: ""}, "no parameter 'xxx", "Parameters: rank, name, partial."),
        ({"rank": "-1"}, "rank: '-1' is not a whole number", ""),
        ({"rank": "1.0"}, "is not a whole number", ""),
        ({"rank": "\u0663"}, "is not a whole number", ""),  # a digit, but not of ASCII
        ({"rank": "9" * 19}, "is not a whole number", ""),
        ({"rank": "1", "name": "x" * 8193}, "name: longer than 8192", ""),
    ],
)
def test_what_a_url_has_wrong_is_named(query: dict[str, str], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        Arguments.of(query, PARAMETERS)
    assert error.value.hint == hint
    assert len(error.value.message) < 150


def test_a_view_without_parameters_says_so() -> None:
    with pytest.raises(UsageError) as error:
        Arguments.of({"rank": "1"}, ())
    assert error.value.hint == "Parameters: none."
