"""The files in deploy/ fit each other and this server. Nothing is built or started here."""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
import yaml

from agent_server.settings import HttpSettings, Settings
from tests.settings_table import options

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


@pytest.fixture(scope="module")
def compose() -> dict:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def test_every_setting_that_is_given_exists(compose):
    text = (DEPLOY / "compose.yaml").read_text() + (DEPLOY / "Dockerfile").read_text()
    names = {name.lower() for name in re.findall(r"\bAGENT_SERVER_([A-Z_]+)", text)}
    assert len(names) > 5 and names <= set(options())


def test_the_gateways_differ_in_nothing_but_their_names_and_addresses(compose):
    gateways = [dict(service) for name, service in compose["services"].items() if name.startswith("gateway")]
    addresses = {gateway.pop("networks")["default"]["ipv4_address"] for gateway in gateways}
    assert len(gateways) == len(addresses) == 2 and gateways[0] == gateways[1]
    (network,) = compose["networks"]["default"]["ipam"]["config"]
    assert all(ip_address(address) in ip_network(network["subnet"]) for address in addresses)
    settings = {
        name.removeprefix("AGENT_SERVER_").lower(): re.sub(r"\$\{[^}]*\}", "x", value)
        for name, value in gateways[0]["environment"].items()
    }
    settings["encryption_keys"] = ""
    parsed = Settings(_env_file=None, **settings)
    assert parsed.sharing.redis_url.startswith("redis://") and parsed.store.database_url.startswith("postgresql://")
    assert int(re.sub(r"\D", "", gateways[0]["stop_grace_period"])) > parsed.http.drain


def test_whoever_is_named_is_a_service(compose):
    services = compose["services"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        named = re.findall(r"(?:@|//)([a-z][a-z-]*)[:/]", " ".join(service.get("environment", {}).values()))
        assert set(named) <= set(services)
    balanced = re.findall(r"server ([\w-]+):8000", (DEPLOY / "nginx.conf").read_text())
    assert balanced == [name for name in services if name.startswith("gateway")]
    scraped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    targets = [target for job in scraped for each in job["static_configs"] for target in each["targets"]]
    assert {target.partition(":")[0] for target in targets} <= set(services)


def test_volumes_files_and_copied_folders_are_there(compose):
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            given_by_hand = source in ("./metrics.key",)
            assert source in compose["volumes"] or (DEPLOY / source).exists() or given_by_hand
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY") and "--from" not in line]
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for path in (path for paths in copied for path in paths):
        assert (ROOT / path).exists() and path.partition("/")[0] in allowed


def test_what_has_no_default_is_in_the_example(compose):
    wanted = set(re.findall(r"\$\{(\w+):\?", (DEPLOY / "compose.yaml").read_text()))
    example = {line.partition("=")[0] for line in (DEPLOY / "example.env").read_text().splitlines() if line[:1] != "#"}
    assert wanted <= example


def test_no_stream_is_buffered_or_cut_while_it_is_silent():
    text = (DEPLOY / "nginx.conf").read_text()
    assert "proxy_buffering off;" in text and "proxy_set_header Upgrade $http_upgrade;" in text
    (seconds,) = re.findall(r"proxy_read_timeout (\d+)s;", text)
    assert int(seconds) > HttpSettings().keep_alive
    (size,) = re.findall(r"client_max_body_size (\d+)m;", text)
    assert int(size) * 2**20 == HttpSettings().max_body
    assert "sticky" not in text and "ip_hash" not in text


def test_the_trial_without_a_gpu_changes_the_engine_alone(compose):
    trial = yaml.safe_load((DEPLOY / "compose.cpu.yaml").read_text())["services"]
    gateways = {name for name in compose["services"] if name.startswith("gateway")}
    assert set(trial) == gateways | {"worker", "vllm"}
    for name in gateways:
        assert trial[name] == {
            "command": ["serve"],
            "environment": {"AGENT_SERVER_ENGINE": "worker+http://worker:8000"},
        }
    named = {name.removeprefix("AGENT_SERVER_").lower() for name in trial["worker"]["environment"]}
    assert named <= set(options())


def test_each_service_that_is_built_names_a_stage_of_the_dockerfile(compose):
    trial = yaml.safe_load((DEPLOY / "compose.cpu.yaml").read_text())
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE))
    built = [each for file in (compose, trial) for each in file["services"].values() if "build" in each]
    assert {each["build"]["target"] for each in built} == {"gateway", "server"} <= stages
    assert {each["image"] for each in built} == {"agent-server-gateway", "agent-server"}
