"""Are there known weaknesses in the packages that constraints.txt pins?

    python scripts/advisories.py [constraints.txt]

pip-audit, in an environment of its own, asks PyPI's advisory service; where that does not answer, OSV's. What has to do
with packages of this machine's Python is asked about, with those that this Python leaves out by their markers left out.
Exits with 0 where nothing is known, 1 where something is, and 2 where neither service could be asked: that is no pass.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PIP_AUDIT = "pip-audit==2.10.1"
SERVICES = ("pypi", "osv")
SECONDS = 600
CLEAN, WEAK, UNKNOWN = 0, 1, 2


def ask(pins: Path, service: str) -> tuple[list[dict[str, object]] | None, str]:
    """(what is known of each package, "") or (None, why it could not be asked)."""
    uv = Path(sys.executable).with_name("uv")
    audit = ["pip-audit", "--requirement", str(pins), "--no-deps", "--disable-pip", "--vulnerability-service", service]
    command = [str(uv), "tool", "run", "--quiet", "--from", PIP_AUDIT, *audit, "--format", "json", "--progress-spinner"]
    try:
        done = subprocess.run([*command, "off"], capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return None, f"no answer within {SECONDS} s"
    return read(done.stdout, done.stderr)


def read(told: str, complaint: str) -> tuple[list[dict[str, object]] | None, str]:
    """What pip-audit said, as `ask` gives it. A package that it skipped was not asked about, which is no answer."""
    try:
        found = json.loads(told)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return None, (complaint.strip().splitlines() or ["it said nothing"])[-1][:300]
    if skipped := [each["name"] for each in found if "skip_reason" in each]:
        return None, f"it knows nothing of {len(skipped)} of {len(found)} packages, such as {skipped[0]}"
    return found, "" if found else "it was asked about no package"


def weaknesses(found: list[dict[str, object]]) -> list[str]:
    told = []
    for package in found:
        known = package.get("vulns")
        for each in known if isinstance(known, list) else ():
            mended = ", ".join(each.get("fix_versions") or ()) or "no version"
            told.append(f"{package['name']} {package['version']}: {each['id']}, mended in {mended}")
    return told


def main(pins: Path) -> int:
    reasons: list[str] = []
    for service in SERVICES:
        found, reason = ask(pins, service)
        if found:
            told = weaknesses(found)
            print(*told, sep="\n")
            print(f"{len(found)} packages, {len(told)} known weaknesses, by {service}.")
            return WEAK if told else CLEAN
        reasons.append(f"{service}: {reason}")
    print("Nothing was checked: no advisory service could be asked.", *reasons, sep="\n  ", file=sys.stderr)
    return UNKNOWN


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "constraints.txt"))
