"""Every run of the tests tries the same examples; HYPOTHESIS_PROFILE=default tries new ones."""

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
