"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# How fast the machine is, is no property of ours.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
