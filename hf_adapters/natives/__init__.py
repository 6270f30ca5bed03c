"""Structures of our own for families whose published checkpoints ask for code of their repositories.

Nothing is registered with transformers' Auto classes; a checkpoint is loaded by `load_native`.
"""

from hf_adapters.natives.family import Family, ForeignConfig, ForeignWeights, TaskRequired, named
from hf_adapters.natives.loading import load_native
from hf_adapters.natives.registry import FAMILIES, family_of, native_class, native_config, native_values

__all__ = [
    "FAMILIES",
    "Family",
    "ForeignConfig",
    "ForeignWeights",
    "TaskRequired",
    "family_of",
    "load_native",
    "named",
    "native_class",
    "native_config",
    "native_values",
]
