"""Autograd: gradients of what the device computes are right, or refused by rule; never quietly wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from spyre_backend.errors import SpyreUnsupported

Function = Callable[[torch.Tensor], torch.Tensor]

FUNCTIONS: dict[str, Function] = {
    "scaled": lambda x: x * 3,
    "product": lambda x: x @ x,
    "rectified": lambda x: (x - 0.5).relu(),
    "part": lambda x: x[:2] * 2,
    "moved": lambda x: x.t().contiguous() * 2,
}


def gradient(function: Function, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    x = torch.randint(-2, 3, (64, 64), generator=generator).half().to(device).requires_grad_()
    result = function(x)
    result.backward(torch.ones(result.shape, dtype=result.dtype, device=device))
    assert x.grad is not None
    assert x.grad.device == x.device
    return x.grad.cpu()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name: str) -> None:
    assert torch.allclose(gradient(FUNCTIONS[name], "spyre"), gradient(FUNCTIONS[name], "cpu"), rtol=2e-2, atol=1e-1)


def test_the_gradient_of_a_sum_is_one_number_and_no_operand_of_a_product() -> None:
    x = torch.ones(64, 64, dtype=torch.float16, device="spyre").requires_grad_()
    with pytest.raises(SpyreUnsupported) as caught:
        (x @ x).sum().backward()  # autograd expands the number, which has no stick to give (D2.4)
    assert caught.value.rule == "double-broadcast"
    assert x.grad is None


def test_a_gradient_that_the_card_cannot_compute_is_refused_by_rule() -> None:
    linear = torch.nn.Linear(64, 64, bias=False).half().to("spyre")
    result = linear(torch.ones(2, 64, dtype=torch.float16, device="spyre"))
    with pytest.raises(SpyreUnsupported) as caught:
        result.backward(torch.ones_like(result))  # the weight's gradient sums over K = 2
    assert caught.value.rule == "matmul-k-stick"
    assert linear.weight.grad is None


def test_gradients_flow_through_copies_between_devices() -> None:
    x = torch.ones(2, 64, requires_grad=True)
    (x.to("spyre")[0].cpu() * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[3.0] * 64, [0.0] * 64]


def test_modes() -> None:
    x = torch.ones(64, dtype=torch.float16, device="spyre", requires_grad=True)
    assert (x * 2).requires_grad
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        assert (x * 2).is_inference()
    assert not (x.detach() * 2).requires_grad


def test_hooks_and_leaves() -> None:
    seen: list[torch.device] = []
    x = torch.ones(64, dtype=torch.float16, device="spyre", requires_grad=True)
    x.register_hook(lambda grad: seen.append(grad.device))
    (x * 2).sum().backward()
    (x * 2).sum().backward()
    assert seen == [x.device] * 2
    assert x.grad is not None
    assert x.grad.cpu().unique().tolist() == [4.0]


def test_writing_to_what_backward_needs_is_found() -> None:
    x = torch.ones(64, dtype=torch.float16, device="spyre", requires_grad=True)
    y = x.exp()
    total = (y * y).sum()
    y.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()
