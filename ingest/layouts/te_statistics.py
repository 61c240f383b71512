"""The logs of statistics that nvdlfw-inspect writes, mostly for the debug features of TransformerEngine.

    {time} - INFO - decoder.0.fc1_activation_max {tabs} iteration=000008 {tabs} value=2.9572

(nvdlfw-inspect 0.2.2, `logging.py`; TransformerEngine, `debug/features/utils/stats_computation.py`.) A name
is made of layer, tensor and statistic, joined by `_`. A value has four digits behind the point: nothing is
left of 0.00001.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

from ingest.layouts.logged_statistics import LoggedTensor, Precision, number_row, reported
from ingest.layouts.pytorch_names import te_tensor
from workers.dump.model import ReportedStatistics, TensorName

#: A line, as `Layout.step_of_line` has it. Names are short, because the parts of one are looked for again and
#: again.
LINE = re.compile(
    rb"^(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) - [A-Z]+ - (?P<name>[^\t\n]{1,1000}?) \t{1,8} "
    rb"iteration=(?P<step>\d{1,18}) \t{1,8} value=(?P<value>\S{1,400})$",
    re.MULTILINE,
)
_NAME = re.compile(
    r"(?P<layer>.+)_(?P<tensor>activation|gradient|weight|output|wgrad|dgrad)_(?P<statistic>[^/]+)", re.DOTALL
)
#: The deviation is that of `torch.var`, which has n - 1 in the place of n.
PRECISION = Precision(decimals=4, std_is_of_sample=True)
_IN_FILE_NAMES = re.compile(r'[/\\:*?"<>| .]')
_BACKWARD = frozenset(["gradient", "dgrad", "wgrad"])
#: Layer and tensor.
_Key: TypeAlias = tuple[str, str]
_NORMS = ("l1_norm", "cur_amax")


def read_lines(source: str, lines: bytes, tensors: str) -> Iterator[ReportedStatistics]:
    """Yield the rows of one iteration.

    Args:
        source: path of the log.
        lines: those of the iteration.
        tensors: the directory where DumpTensors would have saved the tensors of this rank and iteration.
    """
    numbers: dict[_Key, dict[str, float]] = {}
    single: dict[str, float] = {}
    for match in LINE.finditer(lines):
        text = match["name"].decode(errors="replace")
        value = _value(match["value"])
        if value is None:
            continue
        parts = _NAME.fullmatch(text)
        if parts is None:
            single[text] = value
        else:
            numbers.setdefault((parts["layer"], parts["tensor"]), {})[parts["statistic"]] = value
    for sequence, ((layer, tensor), values) in enumerate(_in_order(numbers)):
        name = te_tensor(layer, tensor)._replace(sequence=sequence)
        logged = LoggedTensor(
            name,
            values,
            [values[norm] for norm in _NORMS if norm in values],
            tensor=f"{tensors}/{_IN_FILE_NAMES.sub('_', layer)}_{tensor}.pt",
        )
        yield from reported(source, logged, PRECISION)
    for sequence, (text, value) in enumerate(single.items(), len(numbers)):
        name = TensorName(op_type="Scalar", op_name=text, io="value", slot=0, sequence=sequence)
        yield number_row(source, name, value, PRECISION)


def _in_order(numbers: dict[_Key, dict[str, float]]) -> list[tuple[_Key, dict[str, float]]]:
    """Return the tensors in order of execution: the log lists layers as they run forward."""
    forward = [item for item in numbers.items() if item[0][1] not in _BACKWARD]
    backward = [item for item in numbers.items() if item[0][1] in _BACKWARD]
    place = {layer: number for number, (layer, _) in enumerate(numbers)}
    return forward + sorted(backward, key=lambda item: -place[item[0][0]])


def _value(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
