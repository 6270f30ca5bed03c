"""How much a case may use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from hf_adapters.agents.protocol import Cost
from hf_adapters.store.agent_records import StoredAttempt


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """Bounds of one case. A reviewer who rejects a draft allows one attempt more."""

    attempts: int = 5
    places: int = 4
    """Failing places of one model that are drafted for one after the other."""
    tokens: int = 2_000_000
    """Both directions."""
    usd: float = 10.0
    seconds: float = 4 * 3600.0
    """Wall-clock time of all attempts: drafting, proving, generalising."""

    def left(self, attempts: Sequence[StoredAttempt]) -> Cost:
        """What is left after these attempts; nothing is below zero."""
        tokens = self.tokens - sum(a.tokens_in + a.tokens_out for a in attempts)
        return Cost(
            tokens_in=max(0, tokens),
            usd=max(0.0, self.usd - sum(a.usd for a in attempts)),
            seconds=max(0.0, self.seconds - sum(a.seconds for a in attempts)),
        )

    def exhausted(self, attempts: Sequence[StoredAttempt]) -> str | None:
        """Why no further attempt may start, None when one may."""
        done = [a for a in attempts if a.outcome == "rejected"]
        allowed = self.attempts + sum(a.stage == "review" for a in done)
        left = self.left(attempts)
        if len(done) >= allowed:
            return f"{len(done)} attempts were rejected, {allowed} are allowed"
        if left.tokens <= 0:
            return f"all {self.tokens:,} tokens are used"
        if left.usd <= 0:
            return f"all ${self.usd:g} are spent"
        if left.seconds <= 0:
            return f"all {self.seconds:g} seconds are used"
        return None

    def to_json(self) -> dict[str, Any]:
        """Plain data, accepted by `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from `to_json`."""
        return cls(**data)
