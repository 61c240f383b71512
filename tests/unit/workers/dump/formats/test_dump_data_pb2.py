"""The compiled protobuf code of DumpData is that of its definition."""

import re
from pathlib import Path

from workers.dump.formats import dump_data_pb2

ROOT = Path(__file__).parents[5]
FIELD_TYPES = {"uint64": 4, "int32": 5, "bytes": 12, "uint32": 13}


def test_compiled_code_is_that_of_the_proto() -> None:
    """If this fails, run `make generated`."""
    text = re.sub(r"//.*", "", (ROOT / "workers/dump/formats/dump_data.proto").read_text())
    messages = dict(re.findall(r"message (\w+) \{(.*?)\}", text, re.DOTALL))
    enums = dict(re.findall(r"enum (\w+) \{(.*?)\}", text, re.DOTALL))
    found = dump_data_pb2.DESCRIPTOR
    assert found.package == re.findall(r"package (\S+);", text)[0]
    assert set(found.message_types_by_name) == set(messages)
    assert set(found.enum_types_by_name) == set(enums)
    for name, body in enums.items():
        values = {value: int(code) for value, code in re.findall(r"(\w+) = (\d+);", body)}
        assert {value.name: value.number for value in found.enum_types_by_name[name].values} == values
    for name, body in messages.items():
        fields = re.findall(r"(repeated )?(\w+) (\w+) = (\d+);", body)
        described = {
            (
                "repeated " if field.is_repeated else "",
                field.message_type or field.enum_type or field.type,
                field.name,
                field.number,
            )
            for field in found.message_types_by_name[name].fields
        }
        assert described == {
            (
                repeated,
                found.message_types_by_name.get(kind)
                or found.enum_types_by_name.get(kind)
                or FIELD_TYPES[kind],
                field,
                int(code),
            )
            for repeated, kind, field, code in fields
        }




