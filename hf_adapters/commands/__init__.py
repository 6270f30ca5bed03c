"""One file for each command; `hf_adapters.cli` puts them together."""
