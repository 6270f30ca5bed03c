"""The Inductor extension: what ``torch.compile`` does on device ``spyre``.

One file for each stage, in pipeline order (D4.2): decompositions -> post_grad -> lowering (with trace and translate) ->
layouts -> restickify -> division -> scratchpad -> bundle -> ``spyre_backend.program``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_registered = False


def register() -> None:
    """Register the device with Dynamo and Inductor: interface, scheduling, wrapper, decompositions, lowerings, passes.

    Idempotent.  Called by the first ``torch.compile(backend="inductor")``; other devices are not affected.
    """
    global _registered
    if _registered:
        return
    from torch._dynamo.device_interface import register_interface_for_device
    from torch._inductor.codegen.common import register_backend_for_device, register_device_op_overrides
    from torch._inductor.decomposition import decompositions as table

    from spyre_backend.compiler import decompositions, lowering
    from spyre_backend.compiler.interface import SpyreInterface
    from spyre_backend.compiler.post_grad import OperatorTable
    from spyre_backend.compiler.scheduling import SpyreOpOverrides, SpyrePythonWrapper, SpyreScheduling

    decompositions.install(table)
    lowering.install()
    register_interface_for_device("spyre", SpyreInterface)
    register_interface_for_device("spyre:0", SpyreInterface)
    register_device_op_overrides("spyre", SpyreOpOverrides())
    register_backend_for_device("spyre", SpyreScheduling, SpyrePythonWrapper, device_custom_pass=OperatorTable())
    _registered = True


def explain_model(module: Callable[..., Any], inputs: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What every stage made of the graphs that one call compiles, in pipeline order within each graph.

    Args:
        module: a model or function prepared for the device (compiled lazily by this call).
        inputs: keyword arguments of the call.

    Returns:
        (stage, text) for every stage of every graph; stage names are those of :data:`stages.STAGES`.

    Raises:
        SpyreUnsupported: what the device refuses; ``partial`` on the exception holds the stages reached.
    """
    import torch
    from torch._inductor import config

    from spyre_backend.compiler import stages

    register()
    torch._dynamo.reset()
    with stages.recording() as collected, torch.no_grad(), config.patch(fx_graph_cache=False):
        try:
            module(**inputs)
        except Exception as error:
            error.partial = [(s.stage, s.text) for s in collected]  # type: ignore[attr-defined]
            raise
    return [(s.stage, f"# graph {s.graph}\n{s.text}") for s in collected]
