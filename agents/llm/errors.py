"""What can go wrong between a drafter and an endpoint."""

from __future__ import annotations

from hf_adapters.errors import HfAdaptersError


class EndpointError(HfAdaptersError):
    """The endpoint cannot be used as it is configured; the message says what to change."""

    code = "E_ENDPOINT"


class EndpointDown(EndpointError):
    """The endpoint did not give a usable answer in as many tries as are allowed; a later `agent resume` tries again."""

    code = "E_ENDPOINT_DOWN"


class ContextOverflow(HfAdaptersError):
    """The conversation is longer than the model can read."""

    code = "E_CONTEXT"
