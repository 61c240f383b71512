"""Which dump systems get a configuration in their own language."""

import pytest

from ingest.dump_configs.writing import WRITERS, system_of, write_config
from tests.dump_requests import REQUEST
from workers.errors import UsageError


@pytest.mark.parametrize(
    ("layouts", "source", "system"),
    [
        ("mindspore", "rank_0/Net/0/1/x.npy", "mindspore"),
        ("cann", "20240801041010/0/x", "acl"),
        ("cann", "worldsize2_global_rank1/20240801041010/0/x", "torchair"),
        ("msprobe+cann", "step0/rank0/x", "msprobe"),
        ("sglang", "step=0", "sglang"),
        ("transformer_engine_statistics", "nvdlfw_inspect_globalrank-0.log", "te"),
    ],
)
def test_the_system_follows_from_the_layout(layouts: str, source: str, system: str) -> None:
    assert system_of(layouts, [source]) == system
    assert system in WRITERS


def test_a_layout_without_a_writer_is_named() -> None:
    with pytest.raises(UsageError, match="vllm") as error:
        system_of("vllm", [])
    assert "mindspore" in str(error.value.hint)
    with pytest.raises(UsageError, match="no system 'caffe'"):
        write_config("caffe", REQUEST)
