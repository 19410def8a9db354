"""The dashboard and the alert rules in deploy/ ask for metrics that the server has, with labels that these have."""

import json
import re
from pathlib import Path

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from agent_server.engines.replicas import ReplicaSet
from agent_server.engines.scripted import Script
from agent_server.settings import ReplicaSettings
from tests.server import scripted, serving

DEPLOY = Path(__file__).parents[2] / "deploy"
NAME = re.compile(r"agent_server:[a-z0-9_]+")
SELECTED = re.compile(r"(agent_server:[a-z0-9_]+)\{(\w+)")
SHARED = frozenset({"agent_server:redis_up"})
"""Of several gateways alone; `test_the_names_of_shared_metrics` holds them."""


def dashboard() -> list[str]:
    found = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    return [target["expr"] for panel in found["panels"] for target in panel["targets"]]


def rules() -> list[dict[str, object]]:
    found = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    return [rule for group in found["groups"] for rule in group["rules"]]


async def scraped() -> dict[str, set[str]]:
    """Sample names → labels of a server that was asked, refused and has replicas."""
    engine = ReplicaSet([scripted([Script(text="a")])], ReplicaSettings(check=60), names=["one"])
    async with serving(engine) as running, httpx.AsyncClient(base_url=running.url) as client:
        asked = {"model": "default", "messages": [{"role": "user", "content": "Hello"}]}
        assert (await client.post("/v1/chat/completions", json=asked)).status_code == 200
        assert (await client.post("/v1/chat/completions", content=b"{")).status_code == 400
        running.server.telemetry.connection_refused("connections")
        running.server.telemetry.record_sweep(None)
        text = (await client.get("/metrics")).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name: set(sample.labels) for sample in samples}


async def test_every_metric_that_is_asked_for_is_there():
    told = await scraped()
    asked = [*dashboard(), *(str(rule["expr"]) for rule in rules())]
    assert asked
    for expression in asked:
        names = set(NAME.findall(expression)) - SHARED
        assert names <= set(told), expression
        assert all(label in told[name] for name, label in SELECTED.findall(expression)), expression
        for by in re.findall(r"by \(([^)]*)\)", expression):
            labels = {label.strip() for label in by.split(",")} - {"instance"}
            assert all(labels <= told[name] for name in names), expression


def test_the_names_of_shared_metrics():
    source = (DEPLOY.parent / "agent_server/runs/sharing/gateway.py").read_text()
    assert all(f'"{name.removeprefix("agent_server:")}"' in source for name in SHARED)


def test_rules_are_whole_and_prometheus_reads_them():
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}, rule
        assert str(rule["annotations"]["summary"]).endswith("."), rule
        assert str(rule["expr"]).count("(") == str(rule["expr"]).count(")")
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    mounted = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["prometheus"]["volumes"]
    assert config["rule_files"] == ["alerts.yml"] and "./alerts.yml:/etc/prometheus/alerts.yml:ro" in mounted
