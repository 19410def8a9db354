"""Which build of torch a machine gets."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from scripts import torch_build
from scripts.torch_build import Build, ChoiceError, Machine, choose

LINUX = Machine(system="Linux", machine="x86_64", cuda=None, tag="cp311")
WHEELS = {
    f"{torch_build.PYTORCH}/cpu": "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
    f"{torch_build.PYTORCH}/cu126": "torch-2.13.0+cu126-cp311-cp311-manylinux_2_28_x86_64.whl",
}


def listed(index: str, pattern: str) -> bool:
    return torch_build.re.fullmatch(pattern, WHEELS[index]) is not None


def unreachable(index: str, pattern: str) -> bool:
    return False


def chosen(machine: Machine, wish: str = "", index: str = "", listed: torch_build.Listed = listed) -> Build:
    return choose("2.13.0", machine, wish, index, listed)


def test_a_gpu_gets_the_plain_build_and_never_a_local_build_for_the_cpu():
    build = chosen(replace(LINUX, cuda=(13, 1)))
    assert (build.requirement, build.index) == ("torch==2.13.0,!=2.13.0+cpu", None)
    assert build.says == ("torch 2.13.0 with CUDA 13 (an NVIDIA GPU, CUDA 13.1), about 2.7 GB with NVIDIA's libraries.")


def test_an_older_driver_gets_the_build_for_it():
    build = chosen(replace(LINUX, cuda=(12, 4)))
    assert (build.requirement, build.index) == ("torch==2.13.0+cu126", f"{torch_build.PYTORCH}/cu126")


def test_an_older_driver_without_that_index_is_told_to_update():
    build = chosen(replace(LINUX, cuda=(12, 4)), listed=unreachable)
    assert (build.requirement, build.index) == ("torch==2.13.0,!=2.13.0+cpu", None)
    assert "update the driver" in build.says


def test_no_gpu_gets_the_cpus_build_from_pytorchs_index():
    build = chosen(LINUX)
    assert (build.requirement, build.index) == ("torch==2.13.0+cpu", f"{torch_build.PYTORCH}/cpu")
    assert build.says == "torch 2.13.0+cpu for the CPU, about 190 MB."


def test_a_wheel_that_pip_already_knows_goes_before_the_index(tmp_path: Path):
    (tmp_path / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").write_bytes(b"x" * 3_000_000)
    machine = replace(LINUX, folders=(tmp_path / "none", tmp_path))
    build = chosen(machine, listed=unreachable)
    assert (build.requirement, build.index) == ("torch==2.13.0+cpu", None)
    assert build.says == f"torch 2.13.0+cpu for the CPU from {tmp_path}, 3 MB."


@pytest.mark.parametrize("name", ["2.12.0+cpu-cp311-cp311", "2.13.0+cpu-cp312-cp312", "2.13.0+cu126-cp311-cp311"])
def test_a_wheel_of_another_version_python_or_build_is_none(tmp_path: Path, name: str):
    (tmp_path / f"torch-{name}-manylinux_2_28_x86_64.whl").touch()
    assert chosen(replace(LINUX, folders=(tmp_path,))).index == f"{torch_build.PYTORCH}/cpu"


def test_another_machines_wheel_on_the_index_is_none():
    assert chosen(replace(LINUX, machine="aarch64")).index is None


def test_without_any_build_for_the_cpu_the_plain_one_is_taken_and_its_size_said():
    build = chosen(LINUX, listed=unreachable)
    assert (build.requirement, build.index) == ("torch==2.13.0", None)
    assert "2.7 GB" in build.says and "TORCH_INDEX" in build.says


def test_the_choice_by_hand_wins():
    assert chosen(LINUX, "cuda").requirement == "torch==2.13.0,!=2.13.0+cpu"
    assert chosen(replace(LINUX, cuda=(13, 0)), "cpu").requirement == "torch==2.13.0+cpu"
    assert chosen(replace(LINUX, cuda=(12, 0)), "", "http://mirror/cu128").index == "http://mirror/cu128"
    assert chosen(LINUX, "", "http://mirror/cpu", unreachable).index == "http://mirror/cpu"


def test_macos_has_one_build():
    mac = Machine(system="Darwin", machine="arm64", cuda=None, tag="cp311")
    assert chosen(mac, listed=unreachable) == Build("torch==2.13.0", None, "torch 2.13.0 for macOS, about 110 MB.")
    with pytest.raises(ChoiceError, match="no build of torch with CUDA for macOS"):
        chosen(mac, "cuda")


def test_another_wish_is_refused():
    with pytest.raises(ChoiceError, match="TORCH=gpu is neither cpu nor cuda"):
        chosen(LINUX, "gpu")


@pytest.mark.parametrize(
    ("installed", "wish", "index", "kept"),
    [
        (None, "", "", False),
        ("2.13.0+cpu", "", "", True),
        ("2.13.0", "", "", True),
        ("2.12.0+cpu", "", "", False),
        ("2.13.0+cpu", "cpu", "", True),
        ("2.13.0+cpu", "cuda", "", False),
        ("2.13.0+cpu", "", "http://mirror", False),
    ],
)
def test_what_is_installed_stays_unless_something_else_is_asked_for(
    installed: str | None, wish: str, index: str, kept: bool
):
    assert torch_build.kept(installed, "2.13.0", wish, index) is kept


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("| NVIDIA-SMI 580.65.06   Driver Version: 580.65.06   CUDA Version: 13.0     |", (13, 0)),
        ("| NVIDIA-SMI 525.147.05   Driver Version: 525.147.05   CUDA Version: 12.0  |", (12, 0)),
        ("| NVIDIA-SMI 590.1  KMD Version: 590.1  CUDA UMD Version: 13.1 |", (13, 1)),
        ("No devices were found", None),
    ],
)
def test_the_drivers_cuda_is_read_from_nvidia_smi(said: str, version: tuple[int, int] | None):
    assert torch_build.cuda_version(said) == version


def test_nvidia_smi_on_the_path_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    command = tmp_path / "nvidia-smi"
    command.write_text('#!/bin/sh\necho "| CUDA Version: 12.8 |"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert torch_build.driver_cuda() == (12, 8)
    command.write_text("#!/bin/sh\nexit 9\n")
    assert torch_build.driver_cuda() is None
    command.unlink()
    assert torch_build.driver_cuda() is None


def test_pips_folders_are_found(tmp_path: Path):
    assert torch_build.find_links({"PIP_FIND_LINKS": f"{tmp_path} file:///a%20b"}) == (tmp_path, Path("/a b"))


@contextmanager
def index(page: str) -> Iterator[str]:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/cpu/torch/" else 404)
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, format: str, *args: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_an_index_lists_a_wheel_or_does_not(monkeypatch: pytest.MonkeyPatch):
    pattern = torch_build.wheel("2.13.0+cpu", LINUX)
    link = '<a href="/whl/cpu/torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl#sha256=0">wheel</a>'
    with index(link) as url:
        assert torch_build.lists(f"{url}/cpu", pattern)
        assert not torch_build.lists(f"{url}/cpu", torch_build.wheel("2.14.0+cpu", LINUX))
        assert not torch_build.lists(f"{url}/cu126", pattern)
    assert not torch_build.lists(f"{url}/cpu", pattern), "nothing listens there"


def test_the_pin_is_read_from_the_lock():
    lock = (Path(__file__).parents[2] / "constraints.txt").read_text("utf-8")
    assert torch_build.pinned(lock) in lock
    assert torch_build.pinned("torchao==1\ntorch==2.13.0 ; sys_platform == 'linux'\n") == "2.13.0"
    with pytest.raises(ChoiceError, match="pins no torch"):
        torch_build.pinned("numpy==1\n")


def test_the_script_says_what_is_wrong_in_one_sentence():
    command = [sys.executable, torch_build.__file__]
    done = subprocess.run(command, env={**os.environ, "TORCH": "gpu"}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "scripts/torch_build.py: TORCH=gpu is neither cpu nor cuda.\n"
