"""What holds for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A property that is slow is one whose machine is busy. Few examples a run: `make seeds` draws others ten times.
settings.register_profile("any machine", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
