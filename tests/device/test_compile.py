"""torch.compile on the device: which backend takes it, guards, graph breaks, refusals, launches."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.convert_frame import register_bytecode_hook

from spyre_backend.errors import SpyreUnsupported


def halves(*size: int) -> torch.Tensor:
    return torch.ones(size, dtype=torch.float16, device="spyre")


def test_inductor_compiles_for_the_device_without_fallbacks() -> None:
    torch.spyre.reset_fallback_counts()
    launches = torch.spyre.launch_count()
    result = torch.compile(lambda x: torch.softmax(x * 2, -1).sum(-1), dynamic=False)(halves(4, 64))
    assert torch.allclose(result.cpu(), torch.ones(4).half(), atol=2e-2)
    assert torch.spyre.launch_count() > launches
    assert torch.spyre.fallback_counts() == {}


def test_another_size_dtype_or_device_is_compiled_again() -> None:
    compiled = torch.compile(lambda x: x + 1, dynamic=False)
    assert compiled(halves(64)).cpu().unique().tolist() == [2.0]
    assert compiled(halves(2, 64)).shape == (2, 64)
    assert compiled(torch.ones(64, device="spyre")).dtype == torch.float32
    assert compiled(torch.ones(64)).device.type == "cpu"


def test_graph_breaks_and_host_values() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + float(y.cpu()[0])

    assert torch.compile(broken, dynamic=False)(halves(64)).cpu().unique().tolist() == [4.0]


def test_what_eager_kernels_do_between_two_graphs_is_not_traced() -> None:
    def not_compiled(x: torch.Tensor) -> torch.Tensor:
        try:
            x = x * 2
            torch._dynamo.graph_break()
            return torch.softmax(x, -1) * 64
        finally:
            pass

    traced: list[str] = []
    hook = register_bytecode_hook(lambda old, new: traced.append(old.co_filename))
    try:
        result = torch.compile(not_compiled, dynamic=False)(halves(1, 64))
    finally:
        hook.remove()
    assert torch.allclose(result.cpu(), torch.ones(1, 64).half(), atol=2e-2)
    assert [name for name in traced if "spyre_backend" in name] == []


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("transform", ["fft", "ifft", "rfft", "irfft", "fft2", "fftn", "rfftn", "irfftn"])
def test_fourier_transforms_are_refused_by_dtype(transform: str, compiled: bool) -> None:
    function = getattr(torch.fft, transform)
    call = torch.compile(lambda x: function(x + 1).real, dynamic=False) if compiled else function
    with pytest.raises(SpyreUnsupported) as caught:
        call(halves(4, 64))
    assert (caught.value.rule, caught.value.op) == ("dtype-unsupported", f"aten.fft_{transform}.default")


def test_operands_of_two_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="device"):
        torch.compile(lambda x, y: x + y, dynamic=False, fullgraph=True)(halves(64), torch.ones(64).half())


def test_a_refusal_names_its_rule_and_leaves_the_device_usable() -> None:
    with pytest.raises(SpyreUnsupported) as caught:
        torch.compile(lambda x, y: x @ y, dynamic=False)(halves(2, 30), halves(30, 64))
    assert caught.value.rule == "matmul-k-stick"
    assert torch.compile(lambda x: x + x, dynamic=False)(halves(64)).cpu().unique().tolist() == [2.0]


def test_compiled_code_runs_on_the_current_stream() -> None:
    compiled = torch.compile(lambda x: x + 1, dynamic=False)
    x = halves(64)
    compiled(x).cpu()
    stream = torch.spyre.Stream()
    stream.wait_stream(torch.spyre.current_stream())
    begin, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    with stream:
        begin.record(stream)
        result = compiled(x)
        end.record(stream)
    end.synchronize()
    assert begin.elapsed_time(end) > 0
    with stream:
        assert result.cpu().unique().tolist() == [2.0]


def test_other_backends_trace_without_the_compiler() -> None:
    for backend in ("eager", "aot_eager"):
        assert torch.compile(lambda x: x + 1, backend=backend)(halves(64)).cpu().unique().tolist() == [2.0]
