"""Runs in an environment with `bfcl-eval`: prints its cases, or judges calls with its AST checker.

    python _peer_bfcl.py cases CATEGORY...     one JSON line for each case, with its tools as OpenAI clients send them
    python _peer_bfcl.py check                 reads {"category", "id", "calls"} lines, prints {"valid", "error"} lines

benchmarks/real_models.py says what to install. The module that imports every vendor's SDK is replaced by the one fact
that the checker asks of it: clients of Chat Completions write "_" for "." in a function's name.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import bfcl_eval

DATA = Path(bfcl_eval.__file__).parent / "data"


class _Model:
    underscore_to_dot = True


def _imports():
    config = types.ModuleType("bfcl_eval.constants.model_config")
    config.MODEL_CONFIG_MAPPING = {"server": _Model}
    sys.modules[config.__name__] = config
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker

    return ast_checker, Language.PYTHON


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def cases(categories: list[str]) -> None:
    _imports()
    from bfcl_eval.constants.enums import ModelStyle
    from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI
    from bfcl_eval.model_handler.utils import convert_to_tool

    for category in categories:
        for number, case in enumerate(lines(DATA / f"BFCL_v4_{category}.json")):
            tools = convert_to_tool(case["function"], GORILLA_TO_OPENAPI, ModelStyle.OPENAI_COMPLETIONS)
            row = {"category": category, "id": case["id"], "number": number, "tools": tools}
            print(json.dumps({**row, "messages": case["question"][0]}))


def check() -> None:
    ast_checker, language = _imports()
    answers: dict[str, dict[str, tuple[list, list]]] = {}
    for line in sys.stdin:
        row = json.loads(line)
        category = row["category"]
        if "irrelevance" in category:
            valid = not row["calls"]
            print(json.dumps({"valid": valid, "error": "" if valid else "a call where none is right"}))
            continue
        if category not in answers:
            asked = {case["id"]: case["function"] for case in lines(DATA / f"BFCL_v4_{category}.json")}
            right = lines(DATA / "possible_answer" / f"BFCL_v4_{category}.json")
            answers[category] = {case["id"]: (asked[case["id"]], case["ground_truth"]) for case in right}
        functions, truth = answers[category][row["id"]]
        if not row["calls"]:
            print(json.dumps({"valid": False, "error": "no call"}))
            continue
        result = ast_checker(functions, row["calls"], truth, language, category, "server")
        print(json.dumps({"valid": result["valid"], "error": "; ".join(map(str, result["error"]))[:300]}))


if __name__ == "__main__":
    cases(sys.argv[2:]) if sys.argv[1] == "cases" else check()
