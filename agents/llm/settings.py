"""Which endpoint is asked, and how."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from hf_adapters.agents.llm.errors import EndpointError

BASE_URL = "OPENAI_BASE_URL"
API_KEY = "OPENAI_API_KEY"
MODEL = "HF_ADAPTERS_MODEL"
PRICES = "HF_ADAPTERS_PRICES"
"""`IN,OUT`: US dollars for a million tokens of each direction."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointSettings:
    """One endpoint and one model."""

    model: str
    base_url: str | None = None
    """None is the client's default."""
    api_key: str = field(default="", repr=False)
    price_in: float = 0.0
    """US dollars for a million tokens."""
    price_out: float = 0.0
    context: int = 100_000
    """Tokens of a conversation from which old results of tools are left out."""
    output: int = 16_000
    """Most tokens of one answer."""
    read_seconds: float = 120.0
    """Longest silence of the endpoint."""
    answer_seconds: float = 900.0
    """Longest answer."""
    tries: int = 6
    """How often a question is asked before the endpoint counts as down."""
    turns: int = 60
    """Most answers in one attempt."""

    @classmethod
    def from_environment(
        cls, model: str | None = None, environment: Mapping[str, str] | None = None
    ) -> EndpointSettings:
        """Settings from OPENAI_BASE_URL, OPENAI_API_KEY, HF_ADAPTERS_MODEL and HF_ADAPTERS_PRICES.

        Args:
            model: overrides HF_ADAPTERS_MODEL.
            environment: `os.environ` when None.

        Raises:
            EndpointError: there is neither a key nor an address, no model, or the prices cannot be read.
        """
        values = os.environ if environment is None else environment
        if not values.get(API_KEY) and not values.get(BASE_URL):
            raise EndpointError(
                f"the drafter openai needs {API_KEY}, or {BASE_URL} for an endpoint of your own; "
                "the drafter rewrite needs neither"
            )
        chosen = model or values.get(MODEL)
        if not chosen:
            raise EndpointError(f"which model shall draft? Name one with --model or {MODEL}")
        prices = values.get(PRICES, "0,0").split(",")
        try:
            price_in, price_out = (float(price) for price in prices)
        except ValueError as error:
            raise EndpointError(f"{PRICES} has to be two numbers, IN,OUT, in US dollars per million tokens") from error
        return cls(
            model=chosen,
            base_url=values.get(BASE_URL) or None,
            # Endpoints of one's own often need no key, but the client does.
            api_key=values.get(API_KEY) or "none",
            price_in=price_in,
            price_out=price_out,
        )

    def price(self, tokens_in: int, tokens_out: int) -> float:
        """US dollars."""
        return (tokens_in * self.price_in + tokens_out * self.price_out) / 1e6
