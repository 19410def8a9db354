"""vLLM's own tests of its HTTP interface against this server: `python -m tests.peers.vllm_suite SDIST [--code FOLDER]`.

SDIST is vLLM's source distribution (`pip download --no-deps --no-binary :all: --no-build-isolation vllm`, or the file from
PyPI's page). Those of its `tests/entrypoints` that ask a server for text over HTTP (FILES) are copied and run. Changed are
names of models, which become the served one's; adapters that they would download are left out. What they import of vLLM
is put in its place: a `RemoteOpenAIServer` that starts this server, the tokenizer of its model, and names alone for the
rest, which skip a test that uses them: it is one of vLLM's own code. Assertions about what vLLM's models say stay.

Its command line is translated where this server has the same: reasoning is read where `--reasoning-parser` asks for
it, calls where `--enable-auto-tool-choice` does, and otherwise all that the model writes is text, as it is there.
Answers without a limit of their own end after 512 tokens: the bundled model repeats itself up to its context.

Prints one table: what passes, and the first line of each failure.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests.peers.llamacpp_suite import ROOT, table

FILES = (
    "anthropic/test_messages.py", "openai/chat_completion/test_chat.py", "openai/chat_completion/test_chat_completion.py",
    "openai/chat_completion/test_chat_echo.py", "openai/chat_completion/test_chat_logit_bias_validation.py",
    "openai/chat_completion/test_completion_with_function_calling.py",
    "openai/chat_completion/test_enable_force_include_usage.py", "openai/chat_completion/test_include_reasoning.py",
    "openai/chat_completion/test_logprob_token_ids.py", "openai/chat_completion/test_root_path.py",
    "openai/chat_completion/test_thinking_token_budget.py", "openai/completion/test_completion.py",
    "openai/completion/test_prompt_validation.py", "openai/models/test_models.py", "openai/responses/test_basic.py",
    "openai/responses/test_function_call.py", "openai/responses/test_simple.py", "openai/responses/test_stateful.py",
    "openai/responses/test_structured_output.py", "openai/test_chunked_prompt.py", "openai/test_return_token_ids.py",
    "openai/test_return_tokens_as_ids.py", "serve/instrumentator/test_basic.py", "serve/instrumentator/test_uds.py",
    "serve/tokenize/test_tokenization.py",
)  # fmt: skip
HELPERS = ("conftest.py", "openai/responses/conftest.py")
NAMES = re.compile(r'^MODEL_NAME\s*=\s*("[^"]+")', re.MULTILINE)
NAMED = re.compile(r'RemoteOpenAIServer\(\s*"[^"]+"')
ADAPTERS = re.compile(r'(\[MODEL_NAME), "[a-z]+-lora"\]')
SECONDS = 60
UTILS = """
import atexit, contextlib, os, socket, subprocess, sys, tempfile, time
import anthropic, httpx, openai, pytest, requests

ROCM_EXTRA_ARGS = []
started = {}


def multi_gpu_only(**more):
    return pytest.mark.skip(reason="several GPUs")


requires_fp8 = pytest.mark.skip(reason="a GPU")


class RemoteOpenAIServer:
    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model, args=(), *, env_dict=None, **more):
        args = [str(each) for each in args]
        named = args[args.index("--served-model-name") + 1] if "--served-model-name" in args else model
        own = ["--store", "memory", "--log-level", "warning", "--served-name", named]
        if not {"--reasoning-parser", "--enable-auto-tool-choice", "--reasoning-config"} & set(args):
            own += ["--format", "phi4_mini_json"]  # which has no reasoning, and calls that no test writes
        for flag in ("--root-path", "--api-key"):
            if flag in args:
                own += [flag, args[args.index(flag) + 1]]
        if "VLLM_API_KEY" in (env_dict or {}):
            own += ["--api-key", env_dict["VLLM_API_KEY"]]
        self.uds = args[args.index("--uds") + 1] if "--uds" in args else None
        if self.uds:
            own += ["--listen", f"unix:{self.uds}"]
        key = tuple(own)
        if key not in started:
            started[key] = self.start(own)
        self.port, self.process = started[key]
        ends = time.time() + 120
        while time.time() < ends and self.process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if self.asked("/ready").status_code == 200:
                    return
            time.sleep(0.1)
        raise RuntimeError("the server did not start")

    def start(self, own):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-c", "from agent_server.cli.main import main; main()", "serve", "--port", str(port)]
        code = os.environ["PEER_CODE"]
        defaults = {"AGENT_SERVER_SAMPLING_DEFAULTS": '{"max_tokens": 512}'}
        process = subprocess.Popen([*command, *own], cwd=code, env={**os.environ, **defaults, "PYTHONPATH": code})
        atexit.register(process.kill)
        return port, process

    def asked(self, path):
        transport = httpx.HTTPTransport(uds=self.uds) if self.uds else None
        with httpx.Client(transport=transport, timeout=5) as client:
            return client.get(f"http://127.0.0.1:{self.port}{path}")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    @property
    def url_root(self):
        if self.uds:
            return "http://localhost"  # over the socket that the test connects to
        return f"http://127.0.0.1:{self.port}"

    def url_for(self, *parts):
        return self.url_root + "/" + "/".join(parts)

    def get_client(self, **more):
        more = {"max_retries": 0, "timeout": 60, **more}
        return openai.OpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, **more)

    def get_async_client(self, **more):
        more = {"max_retries": 0, "timeout": 60, **more}
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, **more)

    def get_async_client_anthropic(self, **more):
        more = {"max_retries": 0, "timeout": 60, **more}
        return anthropic.AsyncAnthropic(base_url=self.url_root, api_key=self.DUMMY_API_KEY, **more)
"""
VLLM = '''
"""In the place of vLLM: the few names that tests of HTTP use, and for all others what skips a test that uses them."""

import base64, importlib.abc, importlib.machinery, importlib.metadata, inspect, os, sys, types
import pytest


class Missing:
    def __init__(self, name):
        self.name = name

    def __call__(self, *given, **named):
        pytest.skip(f"vLLM's own code: {self.name}")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.name}.{name}")

    def __class_getitem__(cls, of):
        return cls

    def __or__(self, other):
        return self

    __ror__ = __or__


def get_tokenizer(tokenizer_name=None, **more):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(os.path.join(os.environ["PEER_CODE"], "agent_server/models/demo"))


class ModelConfig:
    def __init__(self, *given, **named):
        pass

    def get_vocab_size(self):
        return len(get_tokenizer())


class Nothing:
    """Of which all is false."""

    def __getattr__(self, name):
        return lambda *given, **named: False


class Envs(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return False


class Hub:
    def snapshot_download(self, **more):
        return "nowhere"


GIVEN = {
    "vllm.tokenizers": {"get_tokenizer": get_tokenizer},
    "vllm.config": {"ModelConfig": ModelConfig},
    "vllm.version": {"__version__": importlib.metadata.version("agent-server")},
    "vllm.platforms": {"current_platform": Nothing()},
    "vllm.transformers_utils.repo_utils": {"hf_api": Hub},
}


class Module(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "envs":
            return Envs("vllm.envs")
        if name.endswith(("Error", "Exception")):
            return type(name, (Exception,), {})
        return Missing(f"{self.__name__}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name == "vllm" or name.startswith("vllm."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Envs(spec.name) if spec.name == "vllm.envs" else Module(spec.name)

    def exec_module(self, module):
        for name, value in GIVEN.get(module.__name__, {}).items():
            setattr(module, name, value)


def pytest_collection_modifyitems(items):
    """Tests that ask no server are of vLLM's own code."""
    for item in items:
        asked = {"server", "client"} & {part for name in item.fixturenames for part in name.split("_")}
        if not asked and "RemoteOpenAIServer" not in inspect.getsource(item.function):
            item.add_marker(pytest.mark.skip(reason="vLLM's own code: no server is asked"))


sys.meta_path.insert(0, Finder())
sys.modules["pybase64"] = base64
'''


def unpacked(sdist: Path, target: Path, files: list[str]) -> Path:
    """The tests, changed, in `target`."""
    wanted = re.compile(r"[^/]+/tests/entrypoints/(.+)")
    with tarfile.open(sdist) as archive:
        for member in archive:
            found = wanted.fullmatch(member.name)
            if found and found[1] in (*files, *HELPERS):
                member.name = f"tests/entrypoints/{found[1]}"
                archive.extract(member, target, filter="data")
    for path in (target / "tests").rglob("test_*.py"):
        path.write_text(adapted(path.read_text("utf-8")), "utf-8")
    for folder in [target / "tests", *(path for path in (target / "tests").rglob("*") if path.is_dir())]:
        (folder / "__init__.py").touch()
    (target / "tests" / "utils.py").write_text(UTILS)
    (target / "peer_plugin.py").write_text(VLLM)
    return target


def adapted(source: str) -> str:
    """With the served model's name, and without adapters."""
    for name in NAMES.findall(source):
        source = source.replace(name, '"default"')
    return ADAPTERS.sub(r"\1]", NAMED.sub('RemoteOpenAIServer("default"', source))


def run(folder: Path, code: Path, files: list[str]) -> ElementTree.Element:
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "peer_plugin", "-p", "no:cacheprovider", "--assert", "plain",
               "--tb", "native", "--continue-on-collection-errors", "--timeout", str(SECONDS), "-o", "timeout_func_only=true", "--rootdir", ".", "-c", os.devnull, "--junitxml", str(report),
               *(f"tests/entrypoints/{name}" for name in files)]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(folder), "PEER_CODE": str(code)}
    subprocess.run(command, cwd=folder, env=environment, check=False, stdout=subprocess.DEVNULL)
    return ElementTree.parse(report).getroot()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sdist", type=Path)
    parser.add_argument("--code", type=Path, default=ROOT)
    parser.add_argument("--file", action="append", choices=FILES)
    given = parser.parse_args()
    files = given.file or list(FILES)
    with tempfile.TemporaryDirectory() as folder:
        print(table(run(unpacked(given.sdist, Path(folder), files), given.code.resolve(), files)))


if __name__ == "__main__":
    main()
