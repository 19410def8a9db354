"""The server's end of the engine's process: whatever the child says, somebody learns that it is gone."""

import asyncio
import subprocess
import sys

import msgspec
import pytest

from agent_server.engine_protocol.protocol import Constraint, GenerationRequest
from agent_server.generation.process import process
from agent_server.generation.process.process import ProcessLink
from agent_server.generation.scheduling.messages import Command, EngineConfig, Submit
from events.options import SamplingParams

CHILD = """
import socket, sys, time
connection = socket.socket(fileno=int(sys.argv[1]))
connection.sendall(bytes.fromhex(sys.argv[2]))
time.sleep(60)
"""
MESSAGES = {
    "no message": (5).to_bytes(4, "little") + b"hello",
    "a message of no kind": (2).to_bytes(4, "little") + b"\x81\xa0",
    "a length without end": b"\xff\xff\xff\xff" + b"x" * 9,
}


@pytest.mark.parametrize("name", MESSAGES)
async def test_a_child_that_cannot_be_understood_is_ended_and_lost(name, monkeypatch):
    def spawn(descriptor, level):
        command = [sys.executable, "-c", CHILD, str(descriptor), MESSAGES[name].hex()]
        return subprocess.Popen(command, pass_fds=[descriptor])

    monkeypatch.setattr(process, "_spawn", spawn)
    reasons = asyncio.Queue()
    link = ProcessLink(lambda report: None, reasons.put_nowait)
    await link.open(EngineConfig(model="tiny"))
    reason = await asyncio.wait_for(reasons.get(), 30)
    assert reason.startswith("The engine's process sent an invalid message")
    await link.close()


async def test_a_server_that_fails_at_a_message_does_not_leave_its_streams_waiting(monkeypatch):
    def spawn(descriptor, level):
        frame = (7).to_bytes(4, "little") + b"\x81\xa4type\xc0"
        command = [sys.executable, "-c", CHILD, str(descriptor), frame.hex()]
        return subprocess.Popen(command, pass_fds=[descriptor])

    monkeypatch.setattr(process, "_spawn", spawn)
    reasons = asyncio.Queue()
    link = ProcessLink(lambda report: None, reasons.put_nowait)
    link._decoder = type("Decoder", (), {"decode": staticmethod(lambda message: 1 / 0)})
    await link.open(EngineConfig(model="tiny"))
    assert "ZeroDivisionError" in await asyncio.wait_for(reasons.get(), 30)
    await link.close()


async def test_a_link_takes_the_child_that_was_started_early(monkeypatch):
    started = []

    def spawn(descriptor, level):
        command = [sys.executable, "-c", CHILD, str(descriptor), ""]
        started.append(subprocess.Popen(command, pass_fds=[descriptor]))
        return started[-1]

    monkeypatch.setattr(process, "_spawn", spawn)
    process.start_early(30)
    process.start_early(30)
    link = ProcessLink(lambda report: None, lambda reason: None)
    await link.open(EngineConfig(model="tiny"))
    assert len(started) == 2 and link.pid in [child.pid for child in started]
    process.stop_early()
    [unused] = [child for child in started if child.pid != link.pid]
    assert unused.returncode is not None
    link.kill("The test is over.")
    await link.close()


def test_a_schema_with_numbers_of_any_size_arrives():
    schema = {"const": 10**30, "maximum": -(2**64), "enum": [1.5, "é", None, True]}
    constraint = Constraint(kind="json_schema", value=schema)
    sent = Submit(
        1,
        GenerationRequest(request_id="r", prompt_token_ids=(1,), sampling=SamplingParams(), constraint=constraint),
    )
    decoder = msgspec.msgpack.Decoder(Command, ext_hook=process._decode_extension)
    assert decoder.decode(msgspec.msgpack.encode(process._with_json_grammar(sent))) == sent
