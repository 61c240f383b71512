"""Names of CANN's dump files."""

import pytest

from ingest.layouts.cann import parse_bin_name


@pytest.mark.parametrize(
    ("file_name", "wanted"),
    [
        (
            "Conv2D.Default_network-WithLossCell__backbone-AlexNet_conv3-Conv2d_Conv2D-op12.2.7.161243956333802",
            (
                "Conv2D",
                "Default_network-WithLossCell__backbone-AlexNet_conv3-Conv2d_Conv2D-op12",
                2,
                7,
                161243956333802,
            ),
        ),
        (
            "Add.Default_Add-op0.65535.65535.1722484800157158",
            ("Add", "Default_Add-op0", -1, -1, 1722484800157158),
        ),
        # Releases of 2021, and exception dumps: without the stream.
        ("Add.Add_2.4.1722556800123456", ("Add", "Add_2", 4, -1, 1722556800123456)),
        ("GatherV2.GatherV21.1.1733469426252033", ("GatherV2", "GatherV21", 1, -1, 1733469426252033)),
        ("Add.Add_2.4.20240801040000123", ("Add", "Add_2", 4, -1, 1722484800123000)),
        ("Add.Add_2.4.20249901040000123", ("Add", "Add_2", 4, -1, 20249901040000123)),
        ("exception_info.7.4.20240801040000123", ("exception_info", "", 4, 7, 1722484800123000)),
        # Threads of FFTS+
        (
            "Add.sgt_graph_0_Add.0.3.1673383728093446.4.1.2.0",
            ("Add", "sgt_graph_0_Add.thread_2", 0, 3, 1673383728093446),
        ),
        (
            "Add.sgt_graph_0_Add.0.3.1673383728093446.4.1.2",
            ("Add", "sgt_graph_0_Add.thread_2", 0, 3, 1673383728093446),
        ),
        (
            "Add.sgt_graph_0_Add.3.1673383728093446.4.1.2.0",
            ("Add", "sgt_graph_0_Add.thread_2", 3, -1, 1673383728093446),
        ),
        (
            "Opdebug.Node_OpDebug.0.3.1673383728094391.4.1.0.0",
            ("Opdebug", "Node_OpDebug.thread_0", 0, 3, 1673383728094391),
        ),
        ("Opdebug.Node_OpDebug.9.7.1722484800168308", ("Opdebug", "Node_OpDebug", 9, 7, 1722484800168308)),
        # Single operators: the call first, its kind second
        (
            "aclnnMul_12_L2.aclnnMul.130.2.1722484800151657",
            ("aclnnMul", "aclnnMul_12_L2", 130, 2, 1722484800151657),
        ),
        (
            "aclnnMul_12_L0.MulAiCore.11.2.1722484800155652",
            ("MulAiCore", "aclnnMul_12_L0", 11, 2, 1722484800155652),
        ),
        ("Add.Add_2.4.655.17", ("Add", "Add_2", 4, 655, 17)),
        ("L2DfxAbscent_4._L0Add.11.2.17", ("Add", "L2DfxAbscent_4", 11, 2, 17)),
    ],
)
def test_names_of_dump_data_files_are_understood(
    file_name: str, wanted: tuple[str, str, int, int, int]
) -> None:
    name = parse_bin_name(file_name, net="N", graph="1")
    assert name is not None
    assert (name.op_type, name.op_name, name.task, name.stream, name.timestamp) == wanted
    assert (name.net, name.graph, name.io, name.slot, name.format) == ("N", "1", "", -1, "")


@pytest.mark.parametrize(
    "file_name",
    [
        "",
        "Add",
        "Add.Add_2",
        "Add.Add_2.4",
        "Add.Add_2.four.7.17",
        "Add.Add_2.4.7.17.bin",
        "Add..4.7.17",
        "Add.Add_2.4.7.17.1.2",
        "Parameter.layer.1.2.3.0.0.17",
        "Add.Add_2.4.7.1722556800123456.1",
        "Add.Add_2.4.7.17.1.2.3.4.5.6",
        "Add.Add_2.4.7." + "9" * 30,
        "x.custom.20240801040000123",
    ],
)
def test_other_names_are_no_names_of_dump_data_files(file_name: str) -> None:
    assert parse_bin_name(file_name) is None
