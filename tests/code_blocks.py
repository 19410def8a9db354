"""The code blocks of the README and the documentation. `python -m tests.code_blocks` counts them by how they are tried."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

OWN_TESTS = {
    "README.md": "tests/test_documents.py",
    "docs/adding-a-wire.md": "tests/adapters/test_adding_a_wire.py",
}
"""Pages whose Python has a test of its own, beside the tutorials (tests/test_tutorials.py)."""

SHOWN = {
    "request on any wire": "a drawing",
    "cli/ ": "a list of folders",
    "clients ──►": "a drawing",
    "The user wants the tide.": "a model's output, which the page's format reads",
    "looks    passed": "a report; tests/cli/test_evaluate.py has one of each kind of line",
}
"""Blocks of text that no program printed, by their beginnings, with what they are."""


@dataclass(frozen=True)
class Block:
    """A fenced block. line: where it begins."""

    page: str
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """The blocks of a page, which is named from the root, in order."""
    text = (ROOT / page).read_text("utf-8")
    return [Block(page, text.count("\n", 0, each.start()) + 1, each[1], each[2]) for each in FENCE.finditer(text)]


def all_blocks(*languages: str) -> list[Block]:
    """Those of every page, in the languages that are named, or in all."""
    found = [block for page in PAGES for block in blocks(str(page.relative_to(ROOT)))]
    return [block for block in found if not languages or block.language in languages]


def tried(block: Block) -> str:
    """How a block is tried. KeyError if it is not."""
    tutorial = block.page.startswith("docs/tutorials/")
    match block.language:
        case "python":
            where = "tests/test_tutorials.py" if tutorial else OWN_TESTS.get(block.page, "tests/test_code_blocks.py")
            return f"run by {where}"
        case "tsx":
            own = "a README's, which docs/tutorials/copilotkit.md has in full" if block.page == "README.md" else ""
            return own or "type-checked and run by tests/test_tutorials.py"
        case "sh":
            return "each command's arguments parsed, and its files looked for, by tests/test_code_blocks.py"
        case "nginx":
            return "its lines are those of deploy/nginx.conf, which nginx has read"
        case "json" | "toml":
            return "run by tests/test_tutorials.py" if tutorial else "read by the server's own reader"
        case "text" if tutorial:
            return "compared with what the block before it prints, by tests/test_tutorials.py"
        case "text":
            return next(what for beginning, what in SHOWN.items() if block.code.startswith(beginning))
    raise KeyError(f"{block} is in {block.language or 'no language'}, which nothing tries")


def counts() -> Iterator[str]:
    found = Counter((block.language, tried(block)) for block in all_blocks())
    yield f"{found.total()} blocks on {len({block.page for block in all_blocks()})} pages"
    for (language, how), number in sorted(found.items(), key=lambda each: -each[1]):
        yield f"{number:4} {language:7} {how}"


if __name__ == "__main__":
    print("\n".join(counts()))
