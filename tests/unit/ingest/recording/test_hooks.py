"""Names are those of the model, whatever wraps it."""

from typing import Any

from ingest.recording.hooks import Names


def test_what_wraps_a_module_is_left_out_of_names(torch: Any) -> None:
    class DistributedDataParallel(torch.nn.Module):  # type: ignore[misc]  # by its name, without processes
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module = module

    inner = torch.nn.Sequential(torch.nn.Linear(1, 1))
    inner.module = torch.nn.ReLU()  # a user may call a module so
    names = Names(DistributedDataParallel(inner), inside_compiled=False)
    assert sorted(names.modules.values()) == ["0", "model", "module"]
    assert names.plain("module.0.weight") == "0.weight"
    assert names.plain("module.module.weight") == "module.weight"
    assert names.compiled_names == []
