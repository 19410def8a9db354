"""Every run of the tests tries the same examples; HYPOTHESIS_PROFILE=default tries new ones.

A deadline for an example would be an assert about elapsed time: on a busy machine any example takes a quarter second.
"""

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
