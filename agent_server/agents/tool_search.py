"""Deferred tools: an agent with many tools declares only a search tool in the prompt and finds the others with it.

The tools that a search returns are a result in the conversation, so the beginning of the prompt, with the declared
tools, stays unchanged and cached. A found tool is then called by its own name, like any other.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ag_ui.core import Message
from ag_ui.core import Tool as ToolDeclaration

from adapters.request_tools import declarations_text
from agent_server.agents.running import CallResult, failure
from agent_server.agents.server_tools import Tool
from agent_server.agents.tool_context import ToolContext
from events.options import DEFERRED

SEARCH_TOOLS = "search_tools"
RESULTS = 5
"""How many tools one search returns."""
CHARACTERS_PER_TOKEN = 3.5
"""Approximate value for declarations in JSON."""
K1, B = 1.2, 0.75
"""BM25's term frequency saturation and length normalisation, at their usual values (Robertson and Zaragoza, The
Probabilistic Relevance Framework, 2009)."""
NAME_WEIGHT = 3
"""The weight of a word in a tool's name, relative to one in its description."""
STOP_WORDS = frozenset([
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
])  # fmt: skip
"""Apache Lucene's English stop words: frequent in queries, rare in short descriptions."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_a-zA-Z]+")


class ToolIndex:
    """A BM25 index over tools' names, descriptions and parameters."""

    def __init__(self, tools: Sequence[ToolDeclaration]) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self._terms: dict[str, Counter[str]] = {}
        for tool in tools:
            parameters = tool.parameters if isinstance(tool.parameters, Mapping) else {}
            properties = parameters.get("properties")
            words = [tool.name] * NAME_WEIGHT + [tool.description]
            for name, schema in properties.items() if isinstance(properties, Mapping) else ():
                words += [name, str(schema.get("description", "")) if isinstance(schema, Mapping) else ""]
            self._terms[tool.name] = Counter(_terms(" ".join(words)))
        self._lengths = {name: counts.total() for name, counts in self._terms.items()}
        self._mean = sum(self._lengths.values()) / max(len(tools), 1) or 1.0
        self._containing = Counter(term for counts in self._terms.values() for term in counts)

    def search(self, query: str, count: int = RESULTS) -> list[ToolDeclaration]:
        """The best matches for the query, best first, without tools that contain none of its terms."""
        terms = set(_terms(query))
        scores: dict[str, float] = {}
        for name, counts in self._terms.items():
            norm = K1 * (1 - B + B * self._lengths[name] / self._mean)
            scores[name] = 0.0
            for term in terms:
                if frequency := counts[term]:
                    containing = self._containing[term]
                    rarity = math.log(1 + (len(self.tools) - containing + 0.5) / (containing + 0.5))
                    scores[name] += rarity * frequency * (K1 + 1) / (frequency + norm)
        best = sorted((name for name, score in scores.items() if score > 0), key=lambda name: (-scores[name], name))
        if query in self.tools:
            best = [query, *(name for name in best if name != query)]
        return [self.tools[name] for name in best[:count]]


def _terms(text: str) -> list[str]:
    """Words of names in any case style, lower case, without stop words and the commonest English endings."""
    words = (word.lower() for word in _WORD.findall(text))
    return [_stem(word) for word in words if word not in STOP_WORDS]


def _stem(word: str) -> str:
    for ending, least in (("ies", 5), ("ing", 6), ("ed", 5), ("es", 5), ("s", 4), ("e", 5)):
        if word.endswith(ending) and len(word) >= least and not word.endswith("ss"):
            return word[: -len(ending)] + ("y" if ending == "ies" else "")
    return word


def tokens_of(tools: Iterable[ToolDeclaration]) -> int:
    """The approximate number of tokens that the declarations take in a prompt."""
    return round(sum(len(tool.model_dump_json(by_alias=True)) for tool in tools) / CHARACTERS_PER_TOKEN)


def search_declaration(index: ToolIndex) -> ToolDeclaration:
    """The declaration of the search tool."""
    return ToolDeclaration(
        name=SEARCH_TOOLS,
        description=(
            f"Find tools. {len(index.tools)} more tools can be called than are listed here. Describe what is to be "
            f"done; the {RESULTS} best are returned with their parameters. Then call one by its name."
        ),
        parameters={
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What the tool should do, in a few words"}},
            "required": ["query"],
        },
    )


class SearchCallee:
    """The search tool, as the loop calls it."""

    checks = False
    early = True
    at_once: int | None = None
    concurrency_key = ""
    repeatable = True
    retry_approval: Tool | None = None

    def __init__(self, index: ToolIndex) -> None:
        self._index = index

    async def answer(self, arguments: dict[str, object], context: ToolContext) -> CallResult:
        query = arguments.get("query")
        if not isinstance(query, str) or not query.strip():
            return failure("The argument 'query' must be a string that says what the tool should do.")
        tools = self._index.search(query.strip())
        if not tools:
            return failure(f"No tool matches {query[:200]!r}. Describe the task in other words.")
        return CallResult(content=declarations_text(tools))


def discovered(messages: Iterable[Message], index: ToolIndex) -> list[ToolDeclaration]:
    """The tools that searches in the conversation returned, marked so that the prompt does not declare them again."""
    searches: set[str] = set()
    names: dict[str, None] = {}
    for message in messages:
        if message.role == "assistant":
            searches |= {call.id for call in message.tool_calls or () if call.function.name == SEARCH_TOOLS}
        elif message.role == "tool" and message.tool_call_id in searches and isinstance(message.content, str):
            try:
                results = json.loads(message.content)
            except ValueError:
                continue
            names.update({each["name"]: None for each in results if isinstance(each, dict) and "name" in each})
    tools = (index.tools[name] for name in names if name in index.tools)
    return [tool.model_copy(update={"metadata": {**(tool.metadata or {}), DEFERRED: True}}) for tool in tools]
