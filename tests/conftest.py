"""Every run of the tests tries the same examples; HYPOTHESIS_PROFILE=default tries new ones.

A deadline for an example would be an assert about elapsed time: on a busy machine any example takes a quarter second.
"""

import os
from functools import cache
from typing import Any

import httpx
import httpx2
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

http_libraries: tuple[Any, ...] = (httpx, httpx2)
for library in http_libraries:
    # Each new client reads all certificates of the system, which takes 50 ms, and thousands of tests make one.
    library._transports.default.create_ssl_context = cache(library.create_ssl_context)
