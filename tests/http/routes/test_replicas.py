"""What an operator sees of the replicas and does to them, and that nobody else does."""

import asyncio
import json

import httpx
from typer.testing import CliRunner
from websockets.asyncio.client import connect

from agent_server.cli.main import app
from agent_server.engines.replicas import ReplicaSet
from agent_server.engines.scripted import Fault, Script
from agent_server.settings import ReplicaSettings
from tests.server import scripted, serving

PATH = "/operator/replicas"
KEY = {"authorization": "Bearer op"}
BODY = {
    "threadId": "t",
    "runId": "r",
    "protocolVersion": "1.0",
    "messages": [{"id": "m", "role": "user", "content": "hi"}],
    "tools": [],
    "context": [],
    "state": None,
    "forwardedProps": {},
}


def engines(*scripts):
    made = [scripted([script]) for script in scripts]
    return ReplicaSet(made, ReplicaSettings(check=0.05), names=[f"host:{number}" for number in range(len(made))])


async def test_an_operator_drains_a_replica_and_sees_it(tmp_path):
    made = engines(Script(text="a"), Script(text="a"))
    async with (
        serving(made, operator_keys="op", api_keys="tenant:user", audit_log=tmp_path / "audit.jsonl") as running,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        shown = (await http.get(PATH, headers=KEY)).json()
        assert [row["name"] for row in shown["replicas"]] == ["host:0", "host:1"]
        answer = await http.post(PATH, headers=KEY, json={"name": "host:1", "draining": True})
        assert [row["condition"] for row in answer.json()["replicas"]] == ["ready", "draining"]
        ready = await http.get("/ready")
        assert (ready.status_code, ready.json()["state"]) == (200, "degraded")
        await http.post(PATH, headers=KEY, json={"name": "host:0", "draining": True})
        assert (await http.get("/ready")).status_code == 503
        assert (await http.get("/health")).status_code == 200
        for name in ("host:0", "host:1"):
            await http.post(PATH, headers=KEY, json={"name": name, "draining": False})
        assert (await http.get("/ready")).json()["state"] == "ready"
        await asyncio.to_thread(running.server.audit.close)
        noted = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
        assert [(entry["action"], entry["replica"]) for entry in noted] == [
            ("replica.drained", "host:1"), ("replica.drained", "host:0"),
            ("replica.resumed", "host:0"), ("replica.resumed", "host:1"),
        ]  # fmt: skip
        assert (await http.post(PATH, headers=KEY, json={"name": "nobody", "draining": True})).status_code == 404
        assert (await http.post(PATH, headers=KEY, content=b"{")).status_code == 400


async def test_nobody_else_may():
    made = engines(Script(text="a"))
    async with (
        serving(made, operator_keys="op", api_keys="tenant:user") as running,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        assert (await http.get(PATH)).status_code == 401
        assert (await http.get(PATH, headers={"authorization": "Bearer user"})).status_code == 403
        assert (await http.get("/metrics", headers=KEY)).status_code == 200
        assert (await http.get("/agui/threads", headers=KEY)).status_code == 403  # it is no tenant's key
    async with serving(engines(Script(text="a"))) as running, httpx.AsyncClient(base_url=running.url) as http:
        refused = await http.get(PATH, headers=KEY)
        assert refused.status_code == 403 and "AGENT_SERVER_OPERATOR_KEYS" in refused.text
    async with serving(scripted("a"), operator_keys="op") as running, httpx.AsyncClient(base_url=running.url) as http:
        assert (await http.get(PATH, headers=KEY)).status_code == 404


async def test_a_run_says_that_it_was_resumed_and_the_metrics_say_where():
    broken = Script(text="one two three", fault=Fault(action="end", after=2))
    made = engines(broken, Script(text="one two three"))
    async with serving(made, demo=False) as running, httpx.AsyncClient(base_url=running.url) as http:
        made.drain("host:1")
        async with http.stream("POST", "/agui", json=BODY) as answer:
            lines = []
            async for line in answer.aiter_lines():
                made.drain("host:1", False)
                lines.append(line)
        assert '"resumed":1' in lines[-2] and "RUN_FINISHED" in lines[-2]
        text = (await http.get("/metrics")).text.splitlines()
        assert 'agent_server:replica_resumes_total{replica="host:0"} 1.0' in text
        assert 'agent_server:replica_failures_total{replica="host:0"} 1.0' in text
        assert 'agent_server:replica_healthy{replica="host:1"} 1.0' in text
        assert 'agent_server:replica_requests_in_flight{replica="host:1"} 0.0' in text
        assert 'agent_server:replica_circuit{replica="host:0",state="closed"} 1.0' in text


async def test_a_generation_over_a_websocket_begins_while_only_some_replicas_are_ready():
    made = engines(Script(text="one"), Script(text="one"))
    async with serving(made, demo=False) as running:
        made.drain("host:1")
        assert running.server.model.status.state == "degraded"
        async with connect(running.url.replace("http", "ws") + "/generate") as client, asyncio.timeout(30):
            await client.send(json.dumps({"type": "config", "prompt": "hi", "options": {"stream": True}}))
            kinds = [json.loads(await client.recv())["type"]]
            while kinds[-1] not in ("completion", "error"):
                kinds.append(json.loads(await client.recv())["type"])
    assert kinds[-1] == "completion"


def test_the_command_says_what_is_wrong_in_one_sentence():
    result = CliRunner().invoke(app, ["replicas", "--server", "http://127.0.0.1:9"])
    assert result.exit_code == 1 and "does not answer" in result.stderr


async def test_the_command_shows_and_drains():
    made = engines(Script(text="a"), Script(text="a"))
    async with serving(made, operator_keys="op") as running:
        command = ["replicas", "--server", running.url, "--key", "op", "--drain", "host:0"]
        result = await asyncio.to_thread(CliRunner().invoke, app, command)
        assert result.exit_code == 0 and "draining" in result.stdout
        assert made.replicas[0].draining
        refused = await asyncio.to_thread(CliRunner().invoke, app, ["replicas", "--server", running.url])
        assert refused.exit_code == 1 and "operator" in refused.stderr
