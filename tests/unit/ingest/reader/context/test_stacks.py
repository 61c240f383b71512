"""Lines of call stacks; stacks, parents and arguments out of JSON files."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.reader.context.files import (
    Frame,
    best_frame,
    parse_construct,
    parse_kernel_args,
    parse_stacks,
)

_RELU = "Torch.relu.0.forward"


_LINES = [
    "File /env/lib/python3.11/site-packages/torch/nn/modules/module.py, line 7, in inner, \n return f(x)",
    "File /srv/a, b.py, line 10, in forward, \n x = torch.relu(y)",
]


_FRAMES = (
    Frame("/srv/a, b.py", 10, "x = torch.relu(y)", "forward"),
    Frame("/env/lib/python3.11/site-packages/torch/nn/modules/module.py", 7, "return f(x)", "inner"),
)


@pytest.mark.parametrize(
    "content", [{"0": [[_RELU, "Module.a"], _LINES]}, {_RELU: _LINES, "Module.a": _LINES}], ids=["new", "old"]
)
def test_stacks_of_both_forms_go_from_outermost_to_innermost(content: object) -> None:
    assert parse_stacks(json.dumps(content).encode()) == ({_RELU: _FRAMES, "Module.a": _FRAMES}, [])


_DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.sampled_from(_LINES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())


@given(_DOCUMENTS | st.binary(max_size=100))
def test_any_bytes_give_an_answer(data: bytes) -> None:
    parse_stacks(data)
    parse_construct(data)
    parse_kernel_args(data)


@pytest.mark.parametrize(
    "data", [b"[" * 200_000, b'{"a":' * 100_000, b'{"a": ' + b"9" * 10_000 + b"}", b"[]"]
)
def test_hostile_json_is_a_problem(data: bytes) -> None:
    for problems in (parse_stacks(data)[1], parse_construct(data)[1]):
        assert len(problems) == 1


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
    assert best_frame([outer, _FRAMES[1], _FRAMES[0], _FRAMES[1]]) == _FRAMES[0]
    assert best_frame([_FRAMES[1]]) == _FRAMES[1]
    assert best_frame([]) is None
