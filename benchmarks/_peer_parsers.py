"""The streaming tool parsers of SGLang and vLLM, taken out of their unpacked wheels.

    pip download --no-deps sglang vllm && unzip -q sglang-*.whl -d PEERS && unzip -q vllm-*.whl -d PEERS

Only the parser modules are imported; what they import besides (servers, kernels, request models) is replaced by
records that hold what they are given, since none of it takes part in parsing.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

Feed = Callable[[str], str]
"""One delta in, the argument text that it gave out."""


class Record:
    """Any attributes."""

    def __init__(self, *_: Any, **values: Any) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return dict(self.__dict__)


class Stand(types.ModuleType):
    """A module in which every name is a class of records, or something that can be called."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        said = {"return_value": False} if name.startswith("is_") else {}
        made = type(name, (Record,), {}) if name[:1].isupper() else MagicMock(name=name, **said)
        setattr(self, name, made)
        return made


class Stands(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives a stand-in for everything that cannot be imported below `package`, and for its heavy parts."""

    def __init__(self, package: str, kept: tuple[str, ...]) -> None:
        self.package, self.kept = package, kept

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        ours = name == self.package or name.startswith(self.package + ".")
        if not ours or any(name == keep or name.startswith(keep + ".") for keep in self.kept):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Stand:
        return Stand(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def package(name: str, folder: Path) -> None:
    """A package whose modules are found but whose own code is not run."""
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module


def sglang(folder: Path, schema: Any) -> dict[str, Callable[[], Feed]]:
    """Parsers by our format's name; each call makes a fresh one."""
    root = folder / "sglang"
    if not root.is_dir():
        return {}
    package("sglang", root)
    package("sglang.srt", root / "srt")
    sys.meta_path.insert(0, Stands("sglang", ("sglang.srt.function_call",)))
    tool = Record(type="function", function=Record(name="f", parameters=schema, strict=False))

    def make(module: str, name: str) -> Callable[[], Feed]:
        detector = getattr(importlib.import_module(f"sglang.srt.function_call.{module}"), name)

        def fresh() -> Feed:
            parser = detector()

            def feed(delta: str) -> str:
                return "".join(call.parameters or "" for call in parser.parse_streaming_increment(delta, [tool]).calls)

            return feed

        return fresh

    return {
        "hermes": make("qwen25_detector", "Qwen25Detector"),
        "kimi_k2": make("kimik2_detector", "KimiK2Detector"),
        "qwen3_coder": make("qwen3_coder_detector", "Qwen3CoderDetector"),
        "llama3_json": make("llama32_detector", "Llama32Detector"),
    }


def arguments_of(function: Any) -> str:
    given = function.get("arguments") if isinstance(function, dict) else function.arguments
    return given or ""


class Tokenizer:
    """A vocabulary that knows every marker."""

    vocab: dict[str, int] = {}
    all_special_tokens: list[str] = []

    def get_vocab(self) -> dict[str, int]:
        return {"<tool_call>": 1, "</tool_call>": 2, "<|python_tag|>": 3}

    def encode(self, text: str, **_: Any) -> list[int]:
        return [9] * len(text)

    def decode(self, ids: Any, **_: Any) -> str:
        return ""


def vllm(folder: Path, schema: Any) -> dict[str, Callable[[], Feed]]:
    root = folder / "vllm"
    if not root.is_dir():
        return {}
    package("vllm", root)
    package("vllm.tool_parsers", root / "tool_parsers")
    sys.meta_path.insert(0, Stands("vllm", ("vllm.tool_parsers",)))
    tools = [Record(type="function", function=Record(name="f", parameters=schema))]
    request = Record(tools=tools, tool_choice="auto")

    def make(module: str, name: str) -> Callable[[], Feed]:
        kind = getattr(importlib.import_module(f"vllm.tool_parsers.{module}"), name)

        def fresh() -> Feed:
            parser = kind(Tokenizer(), tools)
            held = [""]

            def feed(delta: str) -> str:
                before = held[0]
                held[0] = before + delta
                said = parser.extract_tool_calls_streaming(before, held[0], delta, [], [9], [9], request)
                calls = (said.tool_calls if said else None) or ()
                return "".join(arguments_of(call.function) for call in calls)

            return feed

        return fresh

    return {
        "hermes": make("hermes_tool_parser", "Hermes2ProToolParser"),
        "llama3_json": make("llama_tool_parser", "Llama3JsonToolParser"),
    }
