"""`hf-adapters check`"""

from hf_adapters.commands._common import friendly


@friendly
def check() -> None:
    """x"""
