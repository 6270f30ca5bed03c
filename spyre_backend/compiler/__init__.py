"""The Inductor extension: what ``torch.compile`` does on device ``spyre``.

One file for each stage, in pipeline order (D4.2): decompositions -> post_grad -> lowering (with trace and translate) ->
layouts -> restickify -> division -> scratchpad -> bundle -> ``spyre_backend.program``.
"""

from __future__ import annotations

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
