"""Lines of a call stack: the innermost one of the user is the best."""

import pytest

from ingest.reader.context.frames import Frame, best_frame

_USER = Frame("/srv/net.py", 22, "return self.relu(x)")


_LIBRARY = Frame(
    "/env/lib/python3.11/site-packages/mindspore/nn/layer/activation.py", 297, "return self.f(x)"
)


@pytest.mark.parametrize(
    ("path", "framework"),
    [
        ("/srv/train.py", False),
        ("/home/me/mindspore/train.py", False),
        ("/env/lib/python3.11/site-packages/mindformers/run.py", False),
        ("/env/lib/python3.11/site-packages/mindspore/nn/cell.py", True),
        (r"C:\env\lib\site-packages\mindspore\nn\cell.py", True),
        ("/home/workspace/mindspore/build/package/mindspore/nn/wrap.py", True),
        ("/ssd1/mindspore/mindspore/nn/layer/conv.py", True),
        ("/env/lib/python3.11/site-packages/torch/nn/modules/module.py", True),
        ("/usr/lib/python3.11/contextlib.py", True),
        ("<string>", True),
    ],
)
def test_code_of_the_framework_is_told_from_that_of_its_user(path: str, framework: bool) -> None:
    assert Frame(path, 1, "").is_framework is framework


def test_the_best_line_is_the_innermost_of_the_user() -> None:
    outer = Frame("/srv/train.py", 1, "")
    assert best_frame([outer, _LIBRARY, _USER, _LIBRARY]) == _USER
    assert best_frame([_LIBRARY]) == _LIBRARY
    assert best_frame([]) is None
