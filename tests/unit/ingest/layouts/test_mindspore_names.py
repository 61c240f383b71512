"""Names of the npy files of MindSpore, of all releases."""

import pytest

from ingest.layouts.cann import parse_tensor_name


@pytest.mark.parametrize(
    ("op_type", "op_name", "rest", "wanted"),
    [
        # 2.4 and later: scope with `_`, dtype at the end.
        (
            "Conv2D",
            "Default_network-WithLossCell__backbone-Net_conv-Conv2d_Conv2D-op0",
            "0.0.1795220037870151.input.1.DefaultFormat.Float32",
            ("input", 1, 1795220037870151, "DefaultFormat", "Float32"),
        ),
        # Up to 2.3: no dtype.
        (
            "ReLU",
            "ReLU-op3",
            "0.0.161243956333802.output.0.NC1HWC0",
            ("output", 0, 161243956333802, "NC1HWC0", ""),
        ),
        # Before 2.3 parameter names keep their dots.
        ("Parameter", "fc.weight", "0.0.17.output.0.DefaultFormat", ("output", 0, 17, "DefaultFormat", "")),
        (
            "Parameter",
            "moments.0.fc.weight",
            "0.0.17.output.0.ND.bfloat16",
            ("output", 0, 17, "ND", "bfloat16"),
        ),
        ("Parameter", "data-12", "0.0.17.output.0.DefaultFormat", ("output", 0, 17, "DefaultFormat", "")),
    ],
)
def test_real_names_are_parsed_from_the_right(
    op_type: str, op_name: str, rest: str, wanted: tuple[str, int, int, str, str]
) -> None:
    found = parse_tensor_name(f"{op_type}.{op_name}.{rest}.npy")
    assert found is not None
    assert (found.op_type, found.op_name) == (op_type, op_name)
    assert (found.io, found.slot, found.timestamp, found.format, found.declared_dtype) == wanted


@pytest.mark.parametrize(
    "file_name",
    [
        "1807535132.npy",
        "weights.npy",
        "Conv2D.op0.0.0.1.sideways.0.DefaultFormat.npy",
        ".npy",
        "a.b.c.d.e.input.0.F.npy",
        "A.b.0.0.1.output.0.npy",
        "A.b.0.0.99999999999999999999.output.0.F.npy",
        "A.0.0.1.output.0.F.npy",
    ],
)
def test_other_names_are_not_guessed(file_name: str) -> None:
    assert parse_tensor_name(file_name) is None
