"""Triton's kernels: run in its interpreter, in a process of their own, and compiled for GPUs that are not here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "kernels"


@pytest.mark.timeout(600)  # half a minute to a minute where nothing else runs
def test_in_the_interpreter():
    """All tests of the folder; see conftest.py there. One process, since most of its time is spent on imports."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-x", "-vv", "--show-capture=no", str(FOLDER)]
    ran = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    passed = set(re.findall(r"(test_\w+\.py)::.* PASSED", ran.stdout))
    assert passed == {path.name for path in FOLDER.glob("test_*.py")}, "a file was not run"
    assert "SKIPPED" not in ran.stdout, ran.stdout
