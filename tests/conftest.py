"""Settings of the whole suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests import postgres

# How long an example takes depends on what else the machine does, so it decides nothing.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """A PostgreSQL server of this session's own."""
    if reason := postgres.why_not():
        pytest.skip(reason)
    with postgres.server() as started:
        yield started
