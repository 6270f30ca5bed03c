"""Acceptance of a patched model: noise floor, metrics, reference values, equivalence in float64."""
