"""How good the drafters are: failing structures, figures, and what hand-written adapters reach."""
