"""The whole server beside llama.cpp's, over HTTP: one model, the same requests, the same number of threads.

    make llamacpp-env LLAMACPP_ENV=/tmp/llamacpp
    python -m benchmarks.engine_llamacpp --llamacpp /tmp/llamacpp --model FOLDER [--type q8_0] [--quantize int8]
        [--threads 2] [--streams 1 8] [--new 64]

FOLDER is a Llama's with its safetensors. llama.cpp reads it as a GGUF file with weights in `--type`, which its own
converter makes beside its server; ours rounds the weights with `--quantize` when it loads them ("" for none). As in
`engine_http.py`: streamed chat completions, N at a time, tokens per second, the median time to the first text, ratios.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.engine_http import ENVIRONMENT, measure

ROOT = Path(__file__).parents[1]
ANSWERS = {"stream_options": {"include_usage": True}, "ignore_eos": True}
PROMPT = 256
"""Tokens that a prompt has at the most."""


def main() -> None:
    options = arguments()
    ENVIRONMENT["OMP_NUM_THREADS"] = str(options.threads)
    server = options.llamacpp / "llama-server"
    if not server.exists():
        sys.exit(f"There is no {server}; `make llamacpp-env LLAMACPP_ENV={options.llamacpp}` makes it.")
    ours = [
        "-c",
        "from agent_server.cli.main import main; main()",
        "serve",
        options.model,
        "--served-name",
        options.model,
    ]
    ours += ["--store", "memory", *(["--quantize", options.quantize] if options.quantize else []), "--port"]
    found = {
        f"ours {options.quantize}".strip(): measure(sys.executable, ours, options, ANSWERS),
        f"llama.cpp {options.type}": measure(str(server), theirs(options), options, ANSWERS),
    }
    if any(rows is None for rows in found.values()):
        sys.exit(f"Not started: {', '.join(name for name, rows in found.items() if rows is None)}.")
    show({name: rows for name, rows in found.items() if rows is not None}, options.streams)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llamacpp", type=Path, default=ROOT / ".llamacpp")
    parser.add_argument("--model", required=True)
    parser.add_argument("--type", default="q8_0", choices=["q8_0", "bf16", "f16", "f32"])
    parser.add_argument("--quantize", default="int8", choices=["int8", "int4", ""])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--new", type=int, default=64)
    return parser.parse_args()


def theirs(options: argparse.Namespace) -> list[str]:
    """The arguments of llama.cpp's server, up to its port."""
    rows, threads = max(options.streams), str(options.threads)
    room = str(rows * (PROMPT + options.new))
    command = ["--model", str(converted(options)), "--alias", options.model, "--ctx-size", room]
    return [*command, "--parallel", str(rows), "--threads", threads, "--threads-batch", threads, "--port"]


def converted(options: argparse.Namespace) -> Path:
    """The model as a GGUF file, which is made once."""
    folder = options.llamacpp.resolve()
    file: Path = folder / f"{Path(options.model).resolve().as_posix().strip('/').replace('/', '-')}.{options.type}.gguf"
    if not file.exists():
        script = ROOT / "scripts" / "llamacpp" / "convert.py"
        model = str(Path(options.model).resolve())
        part = file.with_suffix(".part")
        command = [sys.executable, str(script), str(ROOT), str(part), model, options.type]
        subprocess.run(command, cwd=folder / "source", check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        part.rename(file)
    return file


def show(found: dict[str, dict[int, tuple[float, float]]], streams: list[int]) -> None:
    print(f"{'streams':>8} {'':>16} {'tok/s':>8} {'first ms':>9}")
    for count in streams:
        for name, rows in found.items():
            rate, first = rows[count]
            print(f"{count:>8} {name:>16} {rate:>8.1f} {first * 1e3:>9.0f}")
        (rate, first), (other, later) = (rows[count] for rows in found.values())
        print(f"{count:>8} {'ratio':>16} {rate / other:>8.2f} {later / first:>9.2f}")


if __name__ == "__main__":
    main()
