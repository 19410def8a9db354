"""Keys in a file: hashed, named, expiring, and taken over without a restart."""

from __future__ import annotations

import asyncio
import logging
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from agent_server.cli.main import app
from agent_server.http.assemble import build_server
from agent_server.http.auth import keys_file as module
from agent_server.http.auth.keys_file import KeyEntry, KeysFile, KeysFileError, add_key, digest, parse_keys
from agent_server.http.auth.principal import Quota
from agent_server.http.server import StartupError
from tests.server import scripted, serving, settings

SOON = datetime(2030, 1, 1, tzinfo=UTC)


def entry(name: str, secret: str, **more: object) -> KeyEntry:
    return KeyEntry(name=name, hash=digest(secret), **more)  # type: ignore[arg-type]


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["keys", *arguments])
    assert result.exit_code == 0, result.stderr
    return str(result.stdout)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "private" / "keys.toml"


def test_the_command_makes_a_key_and_prints_its_secret_once(file: Path):
    limits = ("--requests-per-minute", "60", "--max-tokens", "100")
    told = ("--tenant", "acme", "--scope", "use", "--scope", "metrics", "--expires", "90d")
    secret = command("new", "ci", "--file", str(file), *told, *limits).strip()
    text = file.read_text()
    assert secret.startswith("as_") and secret not in text and stat.S_IMODE(file.stat().st_mode) == 0o600
    keys = KeysFile(file)
    keys.load()
    found = keys.find(secret)
    assert found is not None and (found.name, found.tenant, found.scopes) == ("ci", "acme", {"use", "metrics"})
    assert found.quota == Quota(requests_per_minute=60, max_tokens=100)
    assert abs((found.expires or 0) - (datetime.now(UTC) + timedelta(days=90)).timestamp()) < 3600
    assert "ci" in command("list", "--file", str(file)) and digest(secret) not in command("list", "--file", str(file))
    command("new", "other", "--file", str(file))
    command("revoke", "ci", "--file", str(file))
    keys.refresh()
    assert keys.find(secret) is None and [each.name for each in parse_keys(file.read_text())] == ["other"]


@pytest.mark.parametrize(
    "arguments",
    [("new", "ci"), ("new", "x", "--scope", "all"), ("new", "x", "--expires", "soon"), ("revoke", "nobody")],
    ids=["name taken", "no scope", "no time", "no key"],
)
def test_what_the_command_cannot_do_changes_nothing(file: Path, arguments: tuple[str, ...]):
    add_key(file, entry("ci", "s"))
    before = file.read_bytes()
    result = CliRunner().invoke(app, ["keys", *arguments, "--file", str(file)])
    assert result.exit_code != 0 and file.read_bytes() == before
    assert "Traceback" not in result.output


def test_an_expired_key_opens_nothing(file: Path):
    add_key(file, entry("ci", "secret", expires=SOON))
    now = SOON.timestamp() - 1
    keys = KeysFile(file, clock=lambda: now)
    keys.load()
    assert keys.find("secret") is not None
    now += 1
    assert keys.find("secret") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keys = [", "end of document"),
        ("[[keys]]\nname = 'x'\n", "hash"),
        ("[[keys]]\nname = 'x'\nhash = 'plain'\n", "64 hexadecimal"),
        ("[[keys]]\nname = 'x'\nhash = '{}'\nscopes = ['all']\n", "all"),
        ("[[keys]]\nname = 'x'\nhash = '{}'\nscopes = []\n", "at least one"),
        ("[[keys]]\nname = 'x'\nhash = '{}'\nexpires = 2030-01-01T00:00:00\n", "time zone"),
        ("[[keys]]\nname = 'x'\nhash = '{}'\nruns = -1\n", "negative"),
        ("[[keys]]\nname = 'x'\nhash = '{}'\ntypo = 1\n", "typo"),
        ("[[keys]]\nname = 'x'\nhash = '{}'\n[[keys]]\nname = 'y'\nhash = '{}'\n", "same hash"),
    ],
)
def test_a_broken_file_says_what_is_wrong_and_no_hash(text: str, said: str):
    made = digest("secret")
    with pytest.raises(KeysFileError, match=said) as raised:
        parse_keys(text.replace("{}", made))
    assert made not in str(raised.value)


def test_a_broken_file_keeps_the_keys_that_were_read(file: Path, caplog: pytest.LogCaptureFixture):
    add_key(file, entry("ci", "secret"))
    keys = KeysFile(file)
    keys.load()
    for break_it in (lambda: file.write_text("keys = ["), file.unlink):
        caplog.clear()
        break_it()
        with caplog.at_level(logging.ERROR):
            assert not keys.refresh() and not keys.refresh()
        assert len(caplog.records) == 1 and "the previous keys stay valid" in caplog.text
        assert keys.find("secret") is not None
    add_key(file, entry("other", "new"))
    assert keys.refresh() and keys.find("secret") is None and keys.find("new") is not None


async def test_a_server_takes_new_keys_without_a_restart(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    add_key(file, entry("old", "old", tenant="acme"))

    async def status(client: httpx.AsyncClient, key: str) -> int:
        return (await client.get("/agui/threads", headers={"x-api-key": key})).status_code

    async with (
        serving(scripted("Hi."), keys_file=file) as running,
        httpx.AsyncClient(base_url=running.url, timeout=10) as client,
    ):
        assert [await status(client, key) for key in ("old", "new", "")] == [200, 401, 401]
        add_key(file, entry("new", "new", tenant="acme"))
        while await status(client, "new") != 200:
            pass
        module.remove_key(file, "old")
        while await status(client, "old") != 401:
            pass
        await asyncio.to_thread(file.write_text, "")  # no key at all is not the same as no file: nobody is admitted
        while await status(client, "new") != 401:
            pass
        assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize("text", [None, "keys = ["])
def test_a_server_does_not_start_without_its_keys(file: Path, text: str | None):
    file.parent.mkdir()
    if text is not None:
        file.write_text(text)
    with pytest.raises(StartupError, match="agent-server keys new"):
        build_server(settings(keys_file=file), engine=scripted("Hi."))
