"""The formula of each format: which device shape follows from a host shape."""

import pytest

from workers.arrays.arrangements import Arrangement, GroupedArrangement
from workers.arrays.device_format import FORMATS, find_arrangement


@pytest.mark.parametrize(
    ("name", "host", "device"),
    [
        ("NC1HWC0", (2, 20, 3, 4), (2, 2, 3, 4, 16)),
        ("NC1HWC0_C04", (2, 3, 5, 5), (2, 1, 5, 5, 4)),
        ("NDC1HWC0", (2, 20, 3, 4, 5), (2, 3, 2, 4, 5, 16)),
        ("FRACTAL_Z", (20, 20, 3, 3), (18, 2, 16, 16)),
        ("FRACTAL_Z_3D", (20, 20, 2, 3, 3), (36, 2, 16, 16)),
        ("FRACTAL_Z_3D_TRANSPOSE", (20, 20, 2, 3, 3), (36, 2, 16, 16)),
        ("FRACTAL_Z_C04", (20, 3, 3, 3), (3, 2, 16, 16)),
        ("FRACTAL_NZ", (20, 35), (3, 2, 16, 16)),
        ("FRACTAL_NZ", (7, 20, 35), (7, 3, 2, 16, 16)),
        ("FRACTAL_ZZ", (20, 35), (2, 3, 16, 16)),
        ("C1HWNCoC0", (7, 20, 3, 3), (2, 3, 3, 7, 16, 16)),
        ("NHWC", (2, 3, 4, 5), (2, 4, 5, 3)),
        ("DHWCN", (2, 3, 4, 5, 6), (4, 5, 6, 3, 2)),
    ],
)
def test_device_shape_follows_from_the_host_shape(
    name: str, host: tuple[int, ...], device: tuple[int, ...]
) -> None:
    arrangement = find_arrangement(name, device, host)
    assert isinstance(arrangement, Arrangement)
    assert find_arrangement(name, (device[0] + 1, *device[1:]), host) is None
    assert find_arrangement(name, (*device, 1), host) is None


def test_groups_share_blocks_as_far_as_they_fit() -> None:
    """Six groups of 4 outputs and 4 channels: four of them fill a block of 16 by 16."""
    arrangement = find_arrangement("FRACTAL_Z", (2, 1, 16, 16), (24, 4, 1, 1), groups=6)
    assert isinstance(arrangement, GroupedArrangement)
    assert arrangement.groups_per_block == 4
    assert find_arrangement("NC1HWC0", (24, 1, 1, 1, 16), (24, 4, 1, 1), groups=6) is None


@pytest.mark.parametrize(
    ("device", "host"),
    [((), (2,)), ((2,), ()), ((-2,), (2,)), ((2**60,), (2**60,)), ((0,), (2,)), ((2,) * 40, (2,) * 40)],
)
def test_implausible_shapes_are_refused_before_any_formula(
    device: tuple[int, ...], host: tuple[int, ...]
) -> None:
    for name in (*FORMATS, "NCHW"):
        assert find_arrangement(name, device, host) is None
