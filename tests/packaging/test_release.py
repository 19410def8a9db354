"""What a release must not pass with."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from scripts import release
from scripts.release import ReleaseError

METADATA = """Metadata-Version: 2.4
Name: agent-server
Version: {version}
Description-Content-Type: text/markdown
Requires-Dist: uvloop; sys_platform != 'win32'
Provides-Extra: local
Requires-Dist: torch; extra == 'local'
{more}
The server.
"""


def archive(folder: Path, *, version: str = "", more: str = "", page: bool = True) -> Path:
    path = folder / "agent_server-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        text = METADATA.format(version=version or release.version(), more=more)
        wheel.writestr("agent_server-1.dist-info/METADATA", text)
        if page:
            wheel.writestr(release.PAGE, "<html>")
    return path


def test_an_archive_with_all_that_it_needs(tmp_path: Path):
    release.check_archive(archive(tmp_path))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": "9.9"}, "says that it is version 9.9, pyproject.toml"),
        ({"version": "one"}, "'one' is invalid for 'version'"),
        ({"more": "Requires-Dist: torch>=2"}, "needs torch without an extra"),
        ({"more": "Requires-Dist: torch>=2; sys_platform == 'linux' or sys_platform == 'darwin'"}, "needs torch"),
        ({"more": "License-Expression: Apache"}, "license"),
        ({"page": False}, "lacks the page"),
    ],
)
def test_what_is_wrong_with_an_archive_is_said(tmp_path: Path, changes: dict[str, object], says: str):
    with pytest.raises(ReleaseError, match=says):
        release.check_archive(archive(tmp_path, **changes))


@pytest.mark.slow
def test_the_sdist_and_the_wheel_pass_but_for_a_page_that_was_not_built(archives: tuple[Path, Path]):
    built = (release.ROOT / release.PAGE).is_file()
    for path in archives:
        if built:
            release.check_archive(path)
        else:
            with pytest.raises(ReleaseError, match="make demo"):
                release.check_archive(path)


def test_the_changelogs_newest_version_is_the_projects(monkeypatch: pytest.MonkeyPatch):
    release.check_changelog("")
    monkeypatch.setattr(release, "version", lambda: "9.9.9")
    with pytest.raises(ReleaseError, match=r"newest version is .*, pyproject\.toml.s is 9\.9\.9"):
        release.check_changelog("")


def bill(folder: Path, *components: dict[str, str]) -> Path:
    place = folder / "a.cdx.json"
    subject = {"name": "agent-server", "version": "1"}
    place.write_text(json.dumps({"metadata": {"component": subject}, "components": components}))
    return place


def test_a_bill_of_materials_names_just_what_is_installed(tmp_path: Path):
    installed = [{"name": "agent-server", "version": "1"}, {"name": "ag_ui", "version": "2"}]
    release.check_bill(bill(tmp_path, {"name": "ag-ui", "version": "2"}), installed)
    for wrong in ((), ({"name": "ag-ui", "version": "3"},), ({"name": "a", "version": "1"},) * 2):
        with pytest.raises(ReleaseError, match="differ"):
            release.check_bill(bill(tmp_path, *wrong), installed)
