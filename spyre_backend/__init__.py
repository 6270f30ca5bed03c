"""An emulated IBM Spyre device for PyTorch.

`import torch` is enough: PyTorch loads this package through the entry-point
group `torch.backends`, after which `torch.ones(2, device="spyre")` works.
When the real `torch_spyre` is installed, this package stays out of its way.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

__all__ = ["__version__"]

__version__ = "0.1.0"

_DEVICE = "spyre"
_loaded = False


def _autoload() -> None:
    """Registers the device with PyTorch; called by `import torch`, idempotent."""
    global _loaded
    if _loaded or importlib.util.find_spec("torch_spyre") is not None:
        return
    _loaded = True
    from spyre_backend.device import registration

    registration.register(_DEVICE)
    registration.on_first_use(_install_eager_kernels)
    _hook_inductor()


def _install_eager_kernels() -> None:
    from spyre_backend.device import eager

    eager.install()


def _hook_inductor() -> None:
    """Registers the compiler when Inductor is first asked for, not before.

    Importing `torch._inductor` takes seconds; `import torch` must not pay them.
    """
    from torch import _TorchCompileInductorWrapper

    wrapper: Any = _TorchCompileInductorWrapper
    stock = wrapper.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        from spyre_backend import compiler

        compiler.register()
        stock(self, *args, **kwargs)

    stock_call = wrapper.__call__

    def __call__(self: Any, model: Any, inputs: Any) -> Any:
        from spyre_backend.compiler.errors import unwrapped

        with unwrapped():
            return stock_call(self, model, inputs)

    wrapper.__init__ = __init__
    wrapper.__call__ = __call__


# PyTorch calls `_autoload` at the end of its own import, so that readers of the
# capability files need not pay for torch here. What is left is torch that came
# first, or that has been told not to load devices.
if "torch" in sys.modules or os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
    import torch  # noqa: F401

    _autoload()
