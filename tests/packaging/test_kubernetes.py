"""deploy/kubernetes as `kubectl apply -k` renders it, against the schemas of the oldest and newest supported Kubernetes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.release import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MANIFESTS = ROOT / "deploy" / "kubernetes"
VALIDATOR = "kubernetes-validate==1.37.0"  # carries the schemas of every Kubernetes since 1.19


def test_there_is_kubectl() -> None:
    assert shutil.which("kubectl"), (
        "`make system` installs kubectl on Debian; see https://kubernetes.io/docs/tasks/tools"
    )


@pytest.mark.parametrize("folder", [MANIFESTS, MANIFESTS / "vllm"], ids=["gateways", "vllm"])
@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_what_kubectl_renders_is_valid(folder: Path, version: str, tmp_path: Path) -> None:
    rendered = tmp_path / "rendered.yaml"
    with rendered.open("w") as output:
        subprocess.run(["kubectl", "kustomize", str(folder)], stdout=output, check=True)
    validate = [
        str(Path(sys.executable).with_name("uv")),
        "tool",
        "run",
        "--quiet",
        "--from",
        VALIDATOR,
        "kubernetes-validate",
    ]
    files = [str(rendered), *map(str, MANIFESTS.glob("secret.example.yaml"))]
    done = subprocess.run([*validate, "--strict", "-k", version, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("passed for resource") == rendered.read_text().count("\nkind: ") + 1


def test_a_misspelled_field_is_found(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text((MANIFESTS / "disruption.yaml").read_text().replace("maxUnavailable", "maxUnavailible"))
    validate = [
        str(Path(sys.executable).with_name("uv")),
        "tool",
        "run",
        "--quiet",
        "--from",
        VALIDATOR,
        "kubernetes-validate",
    ]
    assert subprocess.run([*validate, "--strict", str(broken)], capture_output=True, check=False).returncode != 0
