"""The PyTorch device `spyre`: everything behind `torch.spyre`."""

from __future__ import annotations
