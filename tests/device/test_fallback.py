"""Operators without a device kernel: right result, one warning, counted by category."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

from spyre_backend.errors import FallbackWarning
from tests.device.reference import run_python


@pytest.fixture(autouse=True)
def fresh_counts() -> Iterator[None]:
    torch.spyre.reset_fallback_counts()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        yield
    torch.spyre.reset_fallback_counts()


def half(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).half().to("spyre")


def ints(*values: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype).to("spyre")


def counts() -> dict[tuple[str, str], int]:
    return torch.spyre.fallback_counts()


# Operators that no release lowers, so that no device kernel can take them over.
@pytest.mark.parametrize(
    ("op", "run", "category"),
    [
        ("aten.erfinv.out", lambda: torch.erfinv(half(3)), "compute"),
        ("aten.cumsum.out", lambda: half(3).cumsum(0), "compute"),
        ("aten.cumsum.out", lambda: ints(1, 2).cumsum(0), "integer"),
        ("aten.bincount.default", lambda: torch.bincount(ints(0, 1, 1)), "integer"),
        ("aten.nonzero.default", lambda: ints(0, 3).nonzero(), "integer"),
        ("aten.nonzero.default", lambda: half(3).nonzero(), "compute"),
        ("aten.arange.start_out", lambda: torch.arange(5, device="spyre"), "integer"),
        ("aten.arange.start_out", lambda: torch.arange(5.0, device="spyre"), "compute"),
    ],
)
def test_categories(op: str, run: Callable[[], torch.Tensor], category: str) -> None:
    run()
    assert counts() == {(op, category): 1}


def test_results_agree_with_the_cpu_and_land_on_the_device() -> None:
    x = half(4, 6)
    y = x.cumsum(1)
    assert y.is_spyre
    assert y.dtype == torch.float16
    expected = x.cpu().cumsum(1).to("spyre").cpu()
    assert torch.equal(y.cpu(), expected)


def test_in_place_and_out_variants_write_through_views() -> None:
    base = half(4, 6)
    expected = base.cpu()
    base[1:, ::2].cumsum_(0)
    expected[1:, ::2].cumsum_(0)
    assert torch.equal(base.cpu(), expected.to("spyre").cpu())
    out = torch.empty(4, 6, dtype=torch.float16, device="spyre")
    torch.cumsum(base, 0, out=out)
    assert torch.equal(out.cpu(), base.cpu().cumsum(0).to("spyre").cpu())


def test_tensor_lists() -> None:
    parts = [half(2, 3, seed=seed) for seed in range(3)]
    joined = torch.cartesian_prod(parts[0][0], parts[1][0])
    assert joined.is_spyre
    assert joined.shape == (9, 2)


def test_casts_that_the_device_lacks_are_counted() -> None:
    half(3).to(torch.int32)
    ints(1, 2).to(torch.int32)
    ints(1, 2).to(torch.float16)
    assert counts() == {("spyre.to_dtype_cpu", "compute"): 2, ("spyre.to_dtype_cpu", "integer"): 1}


def test_casts_of_the_device_are_not() -> None:
    x = half(3)
    assert torch.equal(x.float().half().bfloat16().cpu(), x.bfloat16().cpu())
    assert x.bool().tolist() == [True] * 3
    assert counts() == {}


class TestLookup:
    def test_embedding_gathers_codes(self) -> None:
        table, index = half(10, 4), ints(3, 0, 9, 3)
        rows = torch.nn.functional.embedding(index.reshape(2, 2), table)
        assert rows.shape == (2, 2, 4)
        assert torch.equal(rows.cpu(), table.cpu()[index.cpu()].reshape(2, 2, 4))
        assert counts() == {("aten.embedding.default", "lookup"): 1}

    @pytest.mark.parametrize("dim", [0, 1, -1])
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_index_select(self, dim: int, dtype: torch.dtype) -> None:
        table, index = half(5, 4).t(), ints(2, 0, 2, dtype=dtype)
        assert torch.equal(table.index_select(dim, index).cpu(), table.cpu().index_select(dim, index.cpu()))
        assert counts() == {("aten.index_select.default", "lookup"): 1}

    def test_values_beyond_float16_survive(self) -> None:
        table = torch.full((2, 2), 1e6, dtype=torch.bfloat16).to("spyre").to(torch.float16)
        assert table.index_select(0, ints(1)).float().tolist()[0][0] == pytest.approx(1e6, rel=4e-3)

    def test_module_with_padding_index(self) -> None:
        module = torch.nn.Embedding(6, 3, padding_idx=0).half().to("spyre")
        assert module(ints(0, 5))[0].tolist() == [0, 0, 0]

    def test_errors(self) -> None:
        with pytest.raises(IndexError, match="out of range"):
            torch.nn.functional.embedding(ints(11), half(10, 4))
        with pytest.raises(RuntimeError, match="same device"):
            torch.nn.functional.embedding(torch.tensor([1]), half(10, 4))
        with pytest.raises(TypeError, match="int64 or int32"):
            half(10, 4).index_select(0, half(1))


def test_warns_once_for_each_operator() -> None:
    script = (
        "import torch, warnings\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    x = torch.ones(3, device='spyre')\n"
        "    x.cumsum(0); x.cumsum(0); torch.erfinv(x)\n"
        "    torch.spyre.reset_fallback_counts(); x.cumsum(0)\n"
        "print([(w.category.__name__, str(w.message)) for w in seen])\n"
    )
    assert run_python(script).stdout.strip() == str(
        [
            ("FallbackWarning", "aten.cumsum.out is falling back to cpu"),
            ("FallbackWarning", "aten.erfinv.out is falling back to cpu"),
        ]
    )


def test_warnings_may_be_errors() -> None:
    script = (
        "import torch, warnings; x = torch.ones(3, device='spyre'); warnings.simplefilter('error')\n"
        "try: x.cumsum(0)\n"
        "except UserWarning as error: print(type(error).__name__)\n"
    )
    assert run_python(script).stdout.strip() == "FallbackWarning"


def test_autograd_goes_through_fallbacks() -> None:
    x = torch.randn(3).to("spyre").requires_grad_()
    (x.cumsum(0) * 2).sum().backward()
    assert x.grad is not None
    assert x.grad.is_spyre
    assert x.grad.tolist() == [6, 4, 2]


def test_launch_counter() -> None:
    from spyre_backend import _C

    torch.spyre.reset_launch_count()
    _C.record_launch()
    assert torch.spyre.launch_count() == 1
    torch.spyre.reset_launch_count()
    assert torch.spyre.launch_count() == 0
