"""What deploy/ gives Prometheus, held against a real one: it scrapes a server, and evaluates every rule and query.

Debian's package is `prometheus`; without its programs these tests are skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.agents.guests.talking import body, user
from tests.server import scripted, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="no Prometheus (promtool) on this machine"),
]
DEPLOY = Path(__file__).parents[2] / "deploy"
SECONDS = 60


def promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", *arguments], cwd=DEPLOY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_takes_the_rules_and_the_configuration() -> None:
    alerts = [
        rule for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"] for rule in group["rules"]
    ]
    assert f"SUCCESS: {len(alerts)} rules found" in promtool("check", "rules", "alerts.yml")
    promtool("check", "config", "--syntax-only", "prometheus.yml")


def test_promtool_refuses_a_rule_that_is_none(tmp_path: Path) -> None:
    broken = (DEPLOY / "alerts.yml").read_text().replace("[5m])", "[5m)", 1)
    (tmp_path / "alerts.yml").write_text(broken)
    with pytest.raises(AssertionError, match="parse"):
        promtool("check", "rules", str(tmp_path / "alerts.yml"))


@contextlib.asynccontextmanager
async def prometheus(folder: Path, target: str, key: str) -> AsyncIterator[httpx.AsyncClient]:
    """One with the configuration of deploy/, but for the addresses, the interval and the key's place."""
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    (folder / "metrics.key").write_text(key)
    config["global"]["scrape_interval"] = config["global"]["evaluation_interval"] = "1s"
    config["rule_files"] = [str(DEPLOY / "alerts.yml")]
    (gateways,) = [job for job in config["scrape_configs"] if job["job_name"] == "gateways"]
    gateways["authorization"]["credentials_file"] = str(folder / "metrics.key")
    gateways["static_configs"] = [{"targets": [target]}]
    config["scrape_configs"] = [gateways]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = await asyncio.create_subprocess_exec(
        "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}", stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}/api/v1", timeout=30) as client:
            yield client
    finally:
        process.terminate()
        await process.wait()


async def asked(client: httpx.AsyncClient, path: str, **parameters: str) -> Any:
    answer = (await client.get(path, params=parameters)).json()
    assert answer["status"] == "success", answer
    return answer["data"]


async def scraped(client: httpx.AsyncClient) -> None:
    """Wait until the server was scraped with success, and the rules were evaluated."""
    async with asyncio.timeout(SECONDS):
        while True:
            with contextlib.suppress(httpx.TransportError, ValueError, AssertionError):
                [target] = (await asked(client, "/targets"))["activeTargets"]
                assert target["health"] != "down", target["lastError"]
                groups = (await asked(client, "/rules"))["groups"]
                states = {rule["health"] for group in groups for rule in group["rules"]}
                if target["health"] == "up" and states == {"ok"}:
                    return
            await asyncio.sleep(0.2)


async def test_it_scrapes_a_server_and_evaluates_every_rule_and_query(tmp_path: Path) -> None:
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 10
    async with (
        serving(scripted("Yes."), api_keys="acme:secret-key") as running,
        httpx.AsyncClient(base_url=running.url, headers={"x-api-key": "secret-key"}) as http,
        prometheus(tmp_path, running.url.removeprefix("http://"), "secret-key") as client,
    ):
        assert "RUN_FINISHED" in (await http.post("/agui", json=body(user("hello")))).text
        await scraped(client)
        for query in queries:
            await asked(client, "/query", query=re.sub(r"\$__rate_interval", "1m", query))
        refused = (await client.get("/query", params={"query": "sum(rate(x[1m))"})).json()
        assert refused["status"] == "error", "it can say no"
        async with asyncio.timeout(SECONDS):
            while not (found := (await asked(client, "/query", query="agent_server:request_success_total"))["result"]):
                await asyncio.sleep(0.2)
        assert [each["value"][1] for each in found if each["metric"]["reason"] == "stop"] == ["1"]
        told = await asked(client, "/metadata")
        assert told["agent_server:time_to_first_token_seconds"][0]["type"] == "histogram"
