"""Why drafted code could not be run."""

from __future__ import annotations

from hf_adapters.errors import HfAdaptersError


class NoSandbox(HfAdaptersError):
    """There is no sandbox on this machine, and drafted code is not run without one."""

    code = "E_NO_SANDBOX"


class SandboxFailed(HfAdaptersError):
    """The sandbox itself did not work: nothing was learnt about the draft."""

    code = "E_SANDBOX"
