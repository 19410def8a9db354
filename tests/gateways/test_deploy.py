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


@pytest.fixture(scope="module")
def kubernetes() -> dict[tuple[str, str], dict]:
    """The objects of deploy/kubernetes by kind and name; each kustomization lists plain files alone."""
    listed = [
        folder / name
        for folder in (DEPLOY / "kubernetes", DEPLOY / "kubernetes" / "vllm")
        for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    ]
    objects = [each for path in listed for each in yaml.safe_load_all(path.read_text())]
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def test_the_pods_settings_and_secrets_are_settings_that_exist(kubernetes):
    secret = yaml.safe_load((DEPLOY / "kubernetes" / "secret.example.yaml").read_text())
    given = {**kubernetes["ConfigMap", "agent-server"]["data"], **secret["stringData"]}
    settings = {name.removeprefix("AGENT_SERVER_").lower(): value for name, value in given.items()}
    assert set(settings) <= set(options()) and len(settings) == len(given)
    parsed = Settings(_env_file=None, **settings)
    assert parsed.store.database_url.startswith("postgresql://") and not parsed.browsers.allowed_hosts


def test_each_engine_of_the_gateways_is_a_pod_of_the_stateful_set(kubernetes):
    engines = kubernetes["ConfigMap", "agent-server"]["data"]["AGENT_SERVER_ENGINE"].split(",")
    pods = kubernetes["StatefulSet", "vllm"]["spec"]
    port = pods["template"]["spec"]["containers"][0]["ports"][0]["containerPort"]
    assert engines == [f"http://vllm-{n}.{pods['serviceName']}:{port}" for n in range(pods["replicas"])]
    assert kubernetes["Service", "vllm"]["spec"]["clusterIP"] == "None"


def test_selectors_of_services_budgets_and_policies_choose_pods_that_exist(kubernetes):
    pods = [
        each["spec"]["template"]["metadata"]["labels"]
        for each in kubernetes.values()
        if "template" in each.get("spec", {})
    ]
    selectors = [
        kubernetes["Service", "agent-server"]["spec"]["selector"],
        kubernetes["Service", "vllm"]["spec"]["selector"],
        kubernetes["PodDisruptionBudget", "agent-server"]["spec"]["selector"]["matchLabels"],
        *(
            each["spec"]["podSelector"]["matchLabels"]
            for (kind, _), each in kubernetes.items()
            if kind == "NetworkPolicy"
        ),
    ]
    assert len(selectors) == 5
    assert all(any(selector.items() <= labels.items() for labels in pods) for selector in selectors)


def test_a_gateway_s_pod_is_confined_and_may_drain(kubernetes):
    pod = kubernetes["Deployment", "agent-server"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    image = (DEPLOY / "Dockerfile").read_text()
    assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
    assert f"USER {pod['securityContext']['runAsUser']}\n" in image
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {each["mountPath"] for each in container["volumeMounts"]} == {
        "/home/server/.cache", "/home/server/.local/share/agent-server", "/tmp",
    }  # fmt: skip
    drain = int(kubernetes["ConfigMap", "agent-server"]["data"]["AGENT_SERVER_DRAIN"])
    assert pod["terminationGracePeriodSeconds"] >= drain + 10
    paths = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")]
    assert paths == ["/health", "/health", "/ready"]


def test_containers_of_the_compose_file_are_confined(compose):
    trial = yaml.safe_load((DEPLOY / "compose.cpu.yaml").read_text())["services"]
    for service in (compose["services"]["gateway-a"], compose["services"]["gateway-b"], trial["worker"]):
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"] and service["tmpfs"] == ["/tmp"]


def test_every_action_of_a_workflow_is_pinned_by_its_commit():
    workflows = list((ROOT / ".github" / "workflows").glob("*.yml"))
    used = [use for path in workflows for use in re.findall(r"uses: (.*)", path.read_text())]
    assert len(workflows) >= 3 and len(used) > 10
    assert [use for use in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", use)] == []


def test_every_test_that_the_threat_model_names_exists():
    rows = [line for line in (ROOT / "SECURITY.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`(tests/[^`]+)`", row.split(" | ")[-1])
        assert named and all((ROOT / name).exists() for name in named), row
