"""Figures of the code itself, for the table in CONTRIBUTING.md.

    python scripts/code_figures.py [FOLDER ...]

FOLDER: events, adapters and agent_server by default. Functions are counted with their signature, docstring and those
inside of them. Comments are `#` comments; directives for tools are none. `Any` is counted wherever the name stands in
code, which is in annotations. `__init__.py` shares no basename. A private helper has one call site if its name stands
twice in its file: where it is defined, and once more.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import sys
import tokenize
from collections import Counter
from pathlib import Path

DIRECTIVES = ("noqa", "type: ignore", "fmt:")
PACKAGES = ("events", "adapters", "agent_server")


def comments(text: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(
        token.type == tokenize.COMMENT and not any(word in token.string for word in DIRECTIVES) for token in tokens
    )


def single_helpers(text: str) -> int:
    """Return the number of private functions that are named once besides their definition."""
    names = [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and re.match("_(?!_)", node.name)
    ]
    return sum(len(re.findall(rf"\b{name}\b", text)) == 2 for name in names)


def main(folders: list[str]) -> None:
    files = [path for folder in folders for path in sorted(Path(folder).rglob("*.py"))]
    texts = [path.read_text("utf-8") for path in files]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    lines = sum(text.count("\n") for text in texts)
    lengths = sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    helpers = sum(map(single_helpers, texts))
    anys = sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes)
    names = Counter(path.name for path in files if path.name != "__init__.py")
    shared = sum(count for count in names.values() if count > 1)
    print(f"files / lines: {len(files)} / {lines}")
    print(f"function median / p95: {statistics.median(lengths):g} / {lengths[int(len(lengths) * 0.95)]}")
    print(f"private helpers with one call site: {100 * helpers / len(lengths):.1f} % of all functions")
    print(f"comment lines: {100 * sum(map(comments, texts)) / lines:.1f} %")
    print(f"Any per 1,000 lines: {1000 * anys / lines:.1f}")
    print(f"files that share a basename: {100 * shared / sum(names.values()):.1f} %")
    print("shared:", ", ".join(sorted(name for name, count in names.items() if count > 1)))


if __name__ == "__main__":
    main(sys.argv[1:] or list(PACKAGES))
