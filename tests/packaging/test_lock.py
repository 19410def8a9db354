"""The lock's check: what it must find, against the package index itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts import lock

PROJECT = """
[project]
name = "small"
version = "1"
requires-python = ">=3.11"
dependencies = ["jsonpatch==1.33"]

[project.optional-dependencies]
vllm = ["there-is-no-such-package-as-this-one"]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One small dependency with one of its own, on two places."""
    monkeypatch.setattr(lock, "PLATFORMS", ("x86_64-manylinux_2_31", "aarch64-apple-darwin"))
    monkeypatch.setattr(lock, "PYTHONS", ("3.11",))
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "constraints.txt").write_text("jsonpointer==3.0.0\n")
    return tmp_path


def test_what_is_written_holds_and_keeps_the_versions_that_it_can(project: Path):
    lock.write(project)
    assert (project / "constraints.txt").read_text() == "jsonpatch==1.33\njsonpointer==3.0.0\n"
    assert list(lock.check(project)) == []


def test_a_pin_that_cannot_be_installed_is_named_with_every_place(project: Path):
    (project / "constraints.txt").write_text("jsonpatch==1.33\njsonpointer==1.0\n")
    faults = list(lock.check(project))
    assert "does not fit pyproject.toml (jsonpointer==1.0, jsonpointer==" in faults[0]
    assert [fault.partition(":")[0] for fault in faults[1:]] == [
        "x86_64-manylinux_2_31, Python 3.11",
        "aarch64-apple-darwin, Python 3.11",
    ]
    assert all("jsonpointer" in fault for fault in faults)


@pytest.mark.parametrize("pins", ["jsonpatch==1.33\n", "jsonpatch==1.33\njsonpointer==3.0.0\nidna==3.10\n"])
def test_a_missing_pin_and_one_too_many_are_found(project: Path, pins: str):
    (project / "constraints.txt").write_text(pins)
    (fault,) = lock.check(project)
    assert "run `make lock`" in fault


def test_a_package_without_a_wheel_for_a_platform_is_found(project: Path):
    (project / "pyproject.toml").write_text(PROJECT.replace("jsonpatch==1.33", "pywin32==312"))
    (project / "constraints.txt").write_text("pywin32==312\n")
    faults = list(lock.check(project))
    assert [fault.partition(":")[0] for fault in faults] == [
        "x86_64-manylinux_2_31, Python 3.11",
        "aarch64-apple-darwin, Python 3.11",
    ]


def test_an_extra_that_cannot_be_resolved_alone_is_named_with_resolution_and_python(project: Path):
    faults = list(lock.check_extras(project))
    assert [fault.partition(":")[0] for fault in faults] == [
        "vllm, highest, Python 3.11",
        "vllm, lowest-direct, Python 3.11",
    ]
    (project / "pyproject.toml").write_text(PROJECT.replace("there-is-no-such-package-as-this-one", "idna>=3.1"))
    assert list(lock.check_extras(project)) == []


def test_an_index_that_does_not_answer_proves_nothing(project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    lock.write(project)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    faults = list(lock.check(project))
    assert len(faults) == 3
    assert all("The package index cannot be reached, so nothing is proved." in fault for fault in faults)


def test_nothing_but_the_one_index_reaches_the_resolver():
    given = {
        "PATH": "/bin",
        "PIP_FIND_LINKS": "/wheels",
        "PIP_EXTRA_INDEX_URL": "http://other",
        "UV_FIND_LINKS": "/wheels",
        "UV_INDEX": "http://other",
        "UV_CACHE_DIR": "/cache",
        "PIP_CERT": "/ca.pem",
    }
    assert lock.plain_environment(given, "http://mirror") == {
        "PATH": "/bin",
        "UV_CACHE_DIR": "/cache",
        "SSL_CERT_FILE": "/ca.pem",
        "UV_DEFAULT_INDEX": "http://mirror",
        "MACOSX_DEPLOYMENT_TARGET": lock.MACOS,
    }


def test_the_index_is_uvs_then_pips():
    both = {"UV_DEFAULT_INDEX": "http://uv", "PIP_INDEX_URL": "http://pip"}
    assert lock.pip_index(both) == "http://uv"
    assert lock.pip_index({"PIP_INDEX_URL": "http://pip"}) == "http://pip"
    nothing = {"PATH": os.environ["PATH"], "PIP_CONFIG_FILE": os.devnull}
    assert lock.pip_index(nothing) is None


def test_the_lock_names_no_index_and_no_folder():
    text = (Path(lock.__file__).parents[1] / "constraints.txt").read_text("utf-8")
    assert "://" not in text and "file:" not in text and "--" not in text
