"""What holds for all tests."""

from hypothesis import settings

# How fast the machine is, is no property of ours.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
