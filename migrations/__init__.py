"""Schema history of the store (alembic); installed as `hf_adapters.migrations`."""
