"""The addresses that a command listens on, and what a person is told of one that cannot be had."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import httpx
import pytest
import typer
from pydantic import ValidationError

from agent_server.cli.serve import listen_all
from agent_server.settings import Settings
from tests.cli.test_serve import command, free_port, ready


def test_a_unix_socket_is_for_its_owner_and_group_and_goes_with_its_server(tmp_path: Path):
    path = tmp_path / "server.sock"
    tcp, unix = listen_all(Settings(listen=("[::1]:0", f"unix:{path}")))
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert tcp.url.startswith("http://localhost:") and unix.url == f"unix:{path}"
    for listener in (tcp, unix):
        listener.stop()
    assert not path.exists()


def test_the_socket_of_a_server_that_was_killed_is_taken_over(tmp_path: Path):
    path = tmp_path / "server.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    (listener,) = listen_all(Settings(listen=f"unix:{path}"))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        accepted, _ = listener.socket.accept()
        accepted.close()
    listener.stop()


def test_a_socket_in_use_and_a_file_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    used, file = tmp_path / "used.sock", tmp_path / "file"
    file.write_text("mine")
    (listener,) = listen_all(Settings(listen=f"unix:{used}"))
    for path, reason in ((used, "Another server listens on unix:"), (file, "the file exists and is not a socket")):
        with pytest.raises(typer.Exit):
            listen_all(Settings(listen=("127.0.0.1:0", f"unix:{path}")))
        assert reason in capsys.readouterr().err
        assert path.exists()
    listener.stop()


@pytest.mark.parametrize("address", ["8000", "localhost:", ":80", "::1:80", "host:99999", "unix:", "http://host:1"])
def test_what_is_no_address_is_refused(address: str):
    with pytest.raises(ValidationError, match="Invalid address"):
        Settings(listen=address)


def names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


async def test_one_server_answers_on_all_its_addresses_and_below_a_path(tmp_path: Path):
    path, port = str(tmp_path / "server.sock"), free_port()
    addresses = ["--listen", f"unix:{path}", "--listen", f"127.0.0.1:{port}", "--root-path", "/ai/"]
    async with command("--engine", "scripted", *addresses) as (process, _):
        over_unix = httpx.AsyncHTTPTransport(uds=path)
        async with httpx.AsyncClient(transport=over_unix, base_url="http://localhost", timeout=20) as client:
            await ready(client)
            assert (await client.get("/v1/models")).status_code == 200
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            assert (await client.get("/openapi.json")).json()["servers"] == [{"url": "/ai"}]
        process.terminate()
        _, errors = await process.communicate()
    assert f"is ready at unix:{path} and http://localhost:{port}".encode() in errors
    assert process.returncode == 0
    assert names(tmp_path) == []
