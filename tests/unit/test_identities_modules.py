"""What modules of PyTorch compute holds by its definition, forward and backward."""

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ingest.identities.check import check
from ingest.identities.gradients import parameter_gradients
from ingest.identities.operators import plain_name
from tests.unit.test_identities_operators import checked

torch: Any = pytest.importorskip("torch")


def convolutions(kind: str) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """Yield modules with shapes that they may be given, in many ways to go along the axes."""
    rng = np.random.default_rng(0)
    for axes in (1, 2, 3):
        for kernel, stride, dilation, padding, groups in (
            *((3, 1, 1, 1, 1), (3, 2, 1, 1, 1), (1, 2, 1, 0, 1), (4, 4, 1, 0, 1), (3, 1, 1, 1, 4)),
            *((3, 1, 2, 2, 2), (5, 2, 1, 2, 1), (4, 2, 1, 1, 1)),
        ):
            made = getattr(torch.nn, f"{kind}{axes}d")(
                4, 8, kernel, stride, padding, groups=groups, dilation=dilation, bias=axes != 2
            )
            yield made, (2, 4, *rng.integers(7, 10, axes).tolist())


@pytest.mark.parametrize("mode", ["reflect", "circular", "replicate"])
def test_what_is_padded_by_other_elements_holds(mode: str) -> None:
    torch.manual_seed(0)
    for axes, padding in ((1, "same"), (2, 1), (3, 1)):
        module = getattr(torch.nn, f"Conv{axes}d")(4, 8, 3, padding=padding, padding_mode=mode)
        x = torch.randn(2, 4, *[8] * axes)
        given = [x.numpy(), module.weight.detach().numpy(), module.bias.detach().numpy()]
        assert checked(f"conv{axes}d", given, module(x).detach().numpy()).status == "holds"


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_convolutions_and_the_gradients_of_their_kernels_hold(kind: str) -> None:
    torch.manual_seed(0)
    for module, shape in convolutions(kind):
        x = torch.randn(shape)
        out = module(x)
        passed = torch.randn(out.shape)
        out.backward(passed)
        named = {name: each.detach().numpy() for name, each in module.named_parameters()}
        name = type(module).__name__
        result = out.detach().numpy()
        assert checked(name, [x.numpy()], result, **named).status == "holds", (module, shape)
        result.flat[result.size // 2] += 1
        assert checked(name, [x.numpy()], result, **named).status == "fails", (module, shape)
        for parameter, values in module.named_parameters():
            made = parameter_gradients(
                plain_name(name), parameter, x.numpy(), passed.numpy(), tuple(values.shape)
            )
            assert values.grad is not None
            found = check(values.grad.numpy(), ((each, False) for each in made))
            assert found.status == "holds", (module, shape, parameter)


@pytest.mark.parametrize(
    "module",
    [
        torch.nn.GroupNorm(4, 8),
        torch.nn.GroupNorm(1, 8, eps=1e-3),
        torch.nn.InstanceNorm2d(8, affine=True),
        torch.nn.BatchNorm2d(8),
    ],
    ids=lambda module: type(module).__name__,
)
def test_norms_over_channels_hold(module: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 8, 5, 5) * 3 + 1
    named = {name: torch.randn_like(each) for name, each in module.named_parameters()}
    module.load_state_dict(named, strict=False)
    given = {name: each.numpy() for name, each in named.items()}
    out = module(x).detach().numpy()
    assert checked(type(module).__name__, [x.numpy()], out, **given).status == "holds"
    out[1, 3, 2, 2] += 1
    found = checked(type(module).__name__, [x.numpy()], out, **given)
    assert found.status == "fails"
    assert found.difference is not None
    assert found.difference.where == "element"


@pytest.mark.parametrize("kind", ["linear", "conv1d"])
def test_sums_may_begin_with_a_bias_that_is_larger_than_all_products(kind: str) -> None:
    """As in the head of a detector, whose bias is a prior: each partial sum is rounded at its size."""
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal(shape).astype(np.float32) * 0.05 for shape in ((64, 96), (8, 96)))
    bias = np.full(8, -4.6, np.float32)
    total = np.broadcast_to(bias, (64, 8)).copy()
    for place in range(96):
        total += np.outer(x[:, place], weight[:, place]).astype(np.float32)
    if kind == "conv1d":
        found = checked("conv1d", [x[..., None], weight[..., None], bias], total[..., None])
    else:
        found = checked("linear", [x, weight, bias], total)
    assert found.status == "holds"


def test_a_convolution_under_autocast_rounds_what_it_multiplies() -> None:
    torch.manual_seed(0)
    module, x = torch.nn.Conv2d(4, 8, 3, padding=1), torch.randn(2, 4, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        out = module(x)
    result = out.detach().float().numpy().astype(ml_dtypes.bfloat16)
    named = {name: each.detach().numpy() for name, each in module.named_parameters()}
    assert checked("Conv2d", [x.numpy()], result, **named).status == "holds"
    result.flat[5] += 1
    assert checked("Conv2d", [x.numpy()], result, **named).status == "fails"
