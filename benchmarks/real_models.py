"""What a real model gets right through this server and through llama.cpp's: one GGUF file, the same requests, in turns.

    python -m venv /tmp/peers
    /tmp/peers/bin/pip install xllamacpp tool-eval-bench
    /tmp/peers/bin/pip install --no-deps bfcl-eval
    /tmp/peers/bin/pip install tree_sitter==0.21.3 tree-sitter-java==0.21.0 tree-sitter-javascript==0.21.4 tenacity \\
        tqdm requests huggingface_hub python-dotenv pydantic overrides
    python -m benchmarks.real_models bfcl --model FILE.gguf --peers /tmp/peers --cases 48 --odd --choice auto required
    python -m benchmarks.real_models tools --model FILE.gguf --peers /tmp/peers
    python -m benchmarks.real_models agents --model FILE.gguf --peers /tmp/peers
    python -m benchmarks.real_models agreement --model FILE.gguf --peers /tmp/peers --cases 40
    python -m benchmarks.real_models speed --model FILE.gguf --peers /tmp/peers

`bfcl` sends cases of BFCL as a client of /v1/chat/completions, at temperature 0, and judges them with BFCL's own
checker of syntax trees. Its columns: "strict" counts the calls that the answer has; "read leniently" also counts JSON
in the text of an answer without calls, and so says what the model knew; "invalid" counts calls of undeclared tools and
calls whose arguments do not fit the schema; "limit" counts answers that ended at max_tokens. Rules are tuned on the
even case numbers and reported on the odd ones. `tools` runs tool-eval-bench's short set over /v1/chat/completions,
`agents` the same scenarios with this server's own agents, which make the simulated calls in the server. `agreement`
asks questions of BFCL without their tools, greedily, and computes the answers again with transformers in float32, which
unpacks the file by itself: after how many tokens it prefers another one, and by how much, and how likely it finds the
whole answer. `speed` starts the servers in turn; --idle gives this one the time to record the forward before the
streams. Raw answers are written to --answers; those of docs/measurements.md are in benchmarks/answers.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import psutil

CATEGORIES = (
    "simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance", "live_simple", "live_multiple",
    "live_parallel", "live_irrelevance",
)  # fmt: skip
MAX_TOKENS = 256
AGREED_TOKENS = 64
START_SECONDS = 600
STREAMS = (1, 4)
SPEED_PROMPT_WORDS, SPEED_TOKENS = 1990, 64


def main() -> None:
    options = arguments()
    options.answers.mkdir(parents=True, exist_ok=True)
    if options.what == "speed":
        speed(options)
        return
    with ExitStack() as stack:
        servers = dict(each.split("=", 1) for each in options.at)
        for name in [] if servers else ["ours"] if options.what == "agents" else options.servers:
            servers[name] = stack.enter_context(server(name, options))
        if options.what == "bfcl":
            for choice in options.choice:
                bfcl(options, servers, choice)
        elif options.what == "agreement":
            agreement(options, servers)
        elif options.what == "agents":
            tool_eval_agents(options, servers["ours"])
        else:
            for name, url in servers.items():
                tool_eval_bench(options, name, url)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["bfcl", "tools", "agents", "agreement", "speed"])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--peers", type=Path, required=True, help="the environment of the peers")
    parser.add_argument("--servers", nargs="+", default=["ours", "llama.cpp"], choices=["ours", "llama.cpp"])
    parser.add_argument("--at", nargs="+", default=[], metavar="NAME=URL", help="servers that run already")
    parser.add_argument("--serve", nargs="*", default=[], help="further options of our server, without their dashes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--idle", type=float, default=0, help="seconds without work before the streams of `speed`")
    parser.add_argument("--cases", type=int, default=48)
    parser.add_argument("--skip", type=int, default=0, help="cases that --answers has from an earlier run of bfcl")
    parser.add_argument("--categories", nargs="+", default=CATEGORIES)
    parser.add_argument("--odd", dest="parity", action="store_const", const=1, default=0)
    parser.add_argument("--even", dest="parity", action="store_const", const=0)
    parser.add_argument("--choice", nargs="+", default=["auto"], choices=["auto", "required", "named"])
    parser.add_argument("--answers", type=Path, default=Path("/tmp/real_models"))
    return parser.parse_args()


@contextmanager
def server(name: str, options: argparse.Namespace) -> Iterator[str]:
    """The server's address while it runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    if name == "ours":
        command = [sys.executable, "-m", "agent_server.cli.main", "serve", str(options.model), "--store", "memory"]
        command += ["--port", port, *(f"--{each}" if i % 2 == 0 else each for i, each in enumerate(options.serve))]
    else:
        script = Path(__file__).parent / "_peer_llamacpp.py"
        streams = str(max(STREAMS) if options.what == "speed" else 1)
        command = [
            str(options.peers / "bin/python"),
            str(script),
            str(options.model),
            port,
            str(options.threads),
            streams,
        ]
    log = (options.answers / f"{name}.log").open("w")
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    if options.what == "agents":
        command += ["--agent", "benchmarks._tool_eval_agents:agents"]
        environment["TOOL_EVAL_BENCH"] = os.environ["TOOL_EVAL_BENCH"] = _packages_of(options.peers)
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_SECONDS
        while not _answers(url):
            if child.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{name} did not start; see {log.name}.")
            time.sleep(0.1)
        yield url
    finally:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()


def _answers(url: str) -> bool:
    body = {"model": "default", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    try:
        return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def bfcl(options: argparse.Namespace, servers: dict[str, str], choice: str) -> None:
    checker = [str(options.peers / "bin/python"), str(Path(__file__).parent / "_peer_bfcl.py")]
    wanted = [each for each in options.categories if choice == "auto" or "irrelevance" not in each]
    listed = subprocess.run([*checker, "cases", *wanted], stdout=subprocess.PIPE, check=True, text=True).stdout
    of_parity = [case for case in map(json.loads, listed.splitlines()) if case["number"] % 2 == options.parity]
    groups = [[case for case in of_parity if case["category"] == each] for each in wanted]
    cases = [case for row in zip(*(_spread(group, options.cases) for group in groups), strict=False) for case in row]
    file = options.answers / f"bfcl-{options.model.stem}-{choice}-{'odd' if options.parity else 'even'}.jsonl"
    rows: list[dict[str, Any]] = []
    if options.skip:
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    with file.open("a" if options.skip else "w") as answers:
        for number, case in enumerate(cases[options.skip : options.cases], options.skip):
            for name, url in servers.items():
                rows.append(judged(checker, {"server": name, "choice": choice, **_ask(url, case, choice)}))
                answers.write(json.dumps(rows[-1]) + "\n")
                answers.flush()
                right = "right" if rows[-1]["strict"]["valid"] else "wrong"
                print(
                    f"{number + 1} {name} {case['id']} {right}, {rows[-1]['seconds']:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    for name in servers:
        show(name, choice, [row for row in rows if row["server"] == name])


def agreement(options: argparse.Namespace, servers: dict[str, str]) -> None:
    """Print how long each greedy answer is the one that transformers gives in float32, which goes on from the tokens of
    the answer, so that one forward says all: up to the first difference, they are its own."""
    import torch
    from transformers import AutoModelForCausalLM

    from agent_server.model_files import load_model_files

    torch.set_num_threads(options.threads)
    tokenizer = load_model_files(str(options.model)).tokenizer
    folder, name = options.model.parent, options.model.name
    reference = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    lister = [str(options.peers / "bin/python"), str(Path(__file__).parent / "_peer_bfcl.py"), "cases"]
    listed = subprocess.run([*lister, *options.categories], stdout=subprocess.PIPE, check=True, text=True).stdout
    cases = list(map(json.loads, listed.splitlines()))
    file = options.answers / f"agreement-{options.model.stem}.jsonl"
    rows: list[dict[str, Any]] = []
    with file.open("w") as answers, torch.inference_mode():
        for case in cases[:: len(cases) // options.cases][: options.cases]:
            for server, url in servers.items():
                prompt = httpx.post(f"{url}/apply-template", json={"messages": case["messages"]}).json()["prompt"]
                ids = tokenizer.encode(prompt, add_special_tokens=False).ids
                body = {"model": "default", "prompt": ids, "temperature": 0}
                if server == "ours":
                    body |= {"max_tokens": AGREED_TOKENS, "return_token_ids": True}
                    reply = httpx.post(f"{url}/v1/completions", json=body, timeout=None).raise_for_status().json()
                    tokens = reply["choices"][0]["token_ids"]
                else:
                    body |= {"n_predict": AGREED_TOKENS, "return_tokens": True}
                    reply = httpx.post(f"{url}/completion", json=body, timeout=None).raise_for_status().json()
                    tokens = reply["tokens"]
                logits = reference(torch.tensor([ids + tokens])).logits[0, len(ids) - 1 : -1].log_softmax(-1)
                best, likely = logits.max(-1)
                given = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
                differing = (likely != torch.tensor(tokens)).nonzero().flatten().tolist()
                row = {"server": server, "case": case["id"], "tokens": len(tokens), "mean": given.mean().item()}
                row |= {"agreed": differing[0] if differing else len(tokens), "differing": len(differing)}
                row["gap"] = (best - given)[differing[0]].item() if differing else 0.0
                rows.append({**row, "text": tokenizer.decode(tokens, skip_special_tokens=False)})
                answers.write(json.dumps(rows[-1]) + "\n")
                answers.flush()
                print(row, file=sys.stderr, flush=True)
    for server in servers:
        own = [row for row in rows if row["server"] == server]
        gaps = sorted(row["gap"] for row in own if row["differing"])
        agreed = sorted(row["agreed"] for row in own)
        print(
            f"{server}: {len(own) - len(gaps)} of {len(own)} answers agree to their end; tokens before the first "
            f"difference: {sum(agreed) / len(own):.1f} on average, median {agreed[len(own) // 2]}, least {agreed[0]}; "
            f"{sum(row['differing'] for row in own)} of {sum(row['tokens'] for row in own)} tokens differ; the first "
            f"differences, in nats: {', '.join(f'{gap:.2f}' for gap in gaps)}; least likely answer "
            f"{min(row['mean'] for row in own):.2f} nats a token"
        )


def judged(checker: list[str], row: dict[str, Any]) -> dict[str, Any]:
    """The answer with what BFCL says of its calls, and of those that are read from its text."""
    asked = [{**{key: row[key] for key in ("category", "id")}, "calls": row[part]} for part in ("calls", "read")]
    lines = "".join(json.dumps(each) + "\n" for each in asked)
    verdicts = subprocess.run([*checker, "check"], input=lines, stdout=subprocess.PIPE, check=True, text=True).stdout
    strict, lenient = map(json.loads, verdicts.splitlines())
    return {**row, "strict": strict, "lenient": lenient}


def _spread(cases: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Up to `count` of them, from all over the file: neighbours are alike in BFCL."""
    step = max(1, len(cases) * len(CATEGORIES) // max(count, 1))
    return cases[::step] + [case for n, case in enumerate(cases) if n % step]


def _ask(url: str, case: dict[str, Any], choice: str) -> dict[str, Any]:
    """The answer to a case as a client sees it, with what it holds."""
    functions = {tool["function"]["name"]: tool["function"]["parameters"] for tool in case["tools"]}
    named = {"type": "function", "function": {"name": next(iter(functions))}}
    body = {
        "model": "default", "messages": case["messages"], "tools": case["tools"], "temperature": 0,
        "max_tokens": MAX_TOKENS, "tool_choice": named if choice == "named" else choice,
    }  # fmt: skip
    begun = time.perf_counter()
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=None)
    row = {"category": case["category"], "id": case["id"], "seconds": round(time.perf_counter() - begun, 2)}
    if reply.status_code != 200:
        return {**row, "error": reply.text[:500], "calls": [], "read": [], "invalid": 0, "finish": "error"}
    answer = reply.json()["choices"][0]
    message, invalid, calls = answer["message"], 0, []
    for call in message.get("tool_calls") or ():
        name = call["function"]["name"]
        try:
            given = json.loads(call["function"]["arguments"])
            jsonschema.validate(given, functions[name])
        except (ValueError, KeyError, jsonschema.ValidationError):
            invalid += 1
            given = None
        # What is no object can be right in no case, and is shown to the checker as such.
        calls.append({name: given if isinstance(given, dict) else {}})
    read = calls or _written_calls(message.get("content") or "", functions)
    return {
        **row,
        "message": message,
        "finish": answer["finish_reason"],
        "calls": calls,
        "read": read,
        "invalid": invalid,
    }


def _written_calls(text: str, functions: dict[str, Any]) -> list[dict[str, Any]]:
    """Calls of declared functions that stand as JSON anywhere in the text."""
    calls, position, decoder = [], 0, json.JSONDecoder()
    while (position := text.find("{", position)) >= 0:
        try:
            value, end = decoder.raw_decode(text, position)
        except ValueError:
            position += 1
            continue
        given = value.get("arguments", value.get("parameters"))
        if value.get("name") in functions and isinstance(given, dict):
            calls.append({value["name"]: given})
            position = end
        else:
            position += 1
    return calls


def show(name: str, choice: str, rows: list[dict[str, Any]]) -> None:
    right, lenient, asked = (Counter[str](), Counter[str](), Counter[str]())
    for row in rows:
        asked[row["category"]] += 1
        right[row["category"]] += row["strict"]["valid"]
        lenient[row["category"]] += row["lenient"]["valid"]
    total, seconds = len(rows), sum(row["seconds"] for row in rows)
    print(
        f"{name} {choice}: strict {right.total()} of {total} ({right.total() / total:.0%}), "
        f"read leniently {lenient.total()}, invalid {sum(row['invalid'] for row in rows)}, "
        f"limit {sum(row['finish'] == 'length' for row in rows)}, {seconds / total:.1f} s a case"
    )
    for category in asked:
        print(
            f"  {category:20} {right[category]:3} of {asked[category]:3}   leniently {lenient[category]:3}", flush=True
        )


def tool_eval_bench(options: argparse.Namespace, name: str, url: str) -> None:
    file = options.answers / f"tool-eval-bench-{name}.json"
    command = [
        str(options.peers / "bin/tool-eval-bench"),
        "run",
        "--short",
        "--base-url",
        f"{url}/v1",
        "--temperature",
        "0",
    ]
    command += ["--model", "default", "--json-file", str(file), "--no-live", "--timeout", "300", "--backend", "unknown"]
    begun = time.perf_counter()
    subprocess.run(command, check=False, cwd=options.answers, stdout=subprocess.DEVNULL)
    found = json.loads(file.read_text())
    print(f"{name}: {time.perf_counter() - begun:.0f} s", json.dumps(found)[:2000], flush=True)


def tool_eval_agents(options: argparse.Namespace, url: str) -> None:
    """The same scenarios through this server's own agents, which make the calls themselves."""
    from benchmarks._tool_eval_agents import SCENARIOS, evaluate

    begun = time.perf_counter()
    with (options.answers / "tool-eval-bench-agents.jsonl").open("w") as answers:
        rows = []
        for scenario in SCENARIOS:
            rows.append(evaluate(scenario, url))
            print(json.dumps(rows[-1]), file=answers, flush=True)
            print(scenario.id, rows[-1]["points"], rows[-1]["summary"], file=sys.stderr, flush=True)
    points = Counter(row["points"] for row in rows)
    score = 100 * (2 * points[2] + points[1]) / (2 * len(rows))
    seconds = time.perf_counter() - begun
    print(f"own agents: {score:.0f} of 100, {points[2]} passed, {points[1]} in part, {seconds:.0f} s", flush=True)


def speed(options: argparse.Namespace) -> None:
    """Print, for each server in turn, the seconds until its first answer, the seconds for one token after a prompt of
    about 2,000, the tokens a second of concurrent streams, and the peak memory of its processes."""
    for name in options.servers:
        begun = time.perf_counter()
        with server(name, options) as url:
            load = time.perf_counter() - begun
            (child,) = [each for each in psutil.Process().children() if each.is_running()]
            words = " ".join(f"{number % 10}" for number in range(SPEED_PROMPT_WORDS // 2))
            prompt = {"model": "default", "prompt": words, "max_tokens": 1, "temperature": 0}
            begun = time.perf_counter()
            used = httpx.post(f"{url}/v1/completions", json=prompt, timeout=None).raise_for_status().json()["usage"]
            first = time.perf_counter() - begun
            time.sleep(options.idle)
            rates = {}
            for count in STREAMS:
                with ThreadPoolExecutor(count) as pool:
                    timed = list(pool.map(lambda number: _timed_stream(url, number), range(count)))
                begins, ends, tokens = zip(*timed, strict=True)
                rates[count] = sum(tokens) / (max(ends) - min(begins))
            peak = sum(_peak_mb(each) for each in [child, *child.children(recursive=True)])
        streams = ", ".join(f"{rate:.1f} tokens/s at {count}" for count, rate in rates.items())
        print(
            f"{name}: first answer {load:.1f} s after its start, one token after {used['prompt_tokens']} in "
            f"{first:.1f} s, {streams}, peak {peak:.0f} MB",
            flush=True,
        )


def _timed_stream(url: str, number: int) -> tuple[float, float, int]:
    """When the first token of an answer came and when the last, and how many came after the first."""
    body = {
        "model": "default", "prompt": f"{number}. A story about the sea:", "max_tokens": SPEED_TOKENS, "temperature": 0,
        "ignore_eos": True, "stream": True,
    }  # fmt: skip
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=None) as reply:
        frames = (line[6:] for line in reply.iter_lines() if line.startswith("data: {"))
        times = [time.perf_counter() for frame in frames if json.loads(frame)["choices"][0]["text"]]
    return times[0], times[-1], SPEED_TOKENS - 1


def _peak_mb(process: psutil.Process) -> float:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


def _packages_of(environment: Path) -> str:
    command = [str(environment / "bin/python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
