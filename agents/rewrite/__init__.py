"""The drafter that searches a rule book of equalities."""

from hf_adapters.agents.rewrite.drafter import RewriteDrafter

__all__ = ["RewriteDrafter"]
