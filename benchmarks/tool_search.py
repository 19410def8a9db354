"""Whether a search finds the right one of many tools, on the Berkeley Function Calling Leaderboard's questions.

    pip download bfcl-eval==2026.3.23 --no-deps && unzip bfcl_eval-*.whl -d bfcl
    python -m benchmarks.tool_search bfcl/bfcl_eval/data

Pools of 200 functions are drawn, with a fixed seed, from all functions of a set; the queries are the users' own
questions whose function is in the pool, word for word. Printed are the share of queries with the right function among
the first five, beside that of a plain match of words, and the tokens that the pool takes in a prompt beside those of a
search.
"""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path

from ag_ui.core import Tool

from agent_server.agents.tool_search import RESULTS, ToolIndex, search_declaration, tokens_of

SETS = ("multiple", "live_multiple")
POOL, POOLS = 200, 10


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def questions(data: Path, name: str) -> tuple[dict[str, Tool], list[tuple[str, str]]]:
    """The functions of a set by their names, and (question, name of its function)."""
    answers = {each["id"]: each["ground_truth"] for each in rows(data / "possible_answer" / f"BFCL_v4_{name}.json")}
    tools: dict[str, Tool] = {}
    asked: list[tuple[str, str]] = []
    for row in rows(data / f"BFCL_v4_{name}.json"):
        for function in row["function"]:
            tools[function["name"]] = Tool(
                name=function["name"], description=function["description"], parameters=function["parameters"]
            )
        said = " ".join(message["content"] for message in row["question"][0] if message["role"] == "user")
        asked.append((said, next(iter(answers[row["id"]][0]))))
    return tools, asked


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower()))


def plain(tools: dict[str, Tool], query: str) -> list[str]:
    """The tools that share the most words with the query: the peer."""
    said = words(query)
    scores = {name: len(said & words(f"{name} {tool.description}")) for name, tool in tools.items()}
    return sorted(scores, key=lambda name: (-scores[name], name))[:RESULTS]


def main(data: Path) -> None:
    for name in SETS:
        everything, asked = questions(data, name)
        right = peer = total = taken = result = 0
        for seed in range(POOLS):
            names = random.Random(seed).sample(sorted(everything), POOL)
            tools = {each: everything[each] for each in names}
            index = ToolIndex(list(tools.values()))
            taken += tokens_of(tools.values()) - tokens_of([search_declaration(index)])
            for query, function in asked:
                if function in tools:
                    found = index.search(query)
                    total += 1
                    right += function in [each.name for each in found]
                    peer += function in plain(tools, query)
                    result += tokens_of(found)
        print(
            f"{name}: {total} queries over {POOLS} pools of {POOL} of {len(everything)} functions; right one among "
            f"{RESULTS}: {right / total:.1%}, by a match of words {peer / total:.1%} (ratio {right / peer:.2f}); "
            f"tokens saved in the prompt {taken // POOLS}, in a search's result {result // total}"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
