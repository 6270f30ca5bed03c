"""The runtime: device memory, launches and copies."""

from __future__ import annotations
