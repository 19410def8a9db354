"""Triton's kernels: run in its interpreter, in a process of their own, and compiled for GPUs that are not here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "kernels"


@pytest.mark.parametrize("file", sorted(path.name for path in FOLDER.glob("test_*.py")))
def test_in_the_interpreter(file):
    """All tests of a file; see conftest.py there."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-x", str(FOLDER / file)]
    ran = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    assert re.search(r"\d+ passed", ran.stdout) and "skipped" not in ran.stdout, ran.stdout[-2000:]
