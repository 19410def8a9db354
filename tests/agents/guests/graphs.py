"""A LangGraph graph with a scripted model: text, tools, an error, a question, state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt


class Scripted(BaseChatModel):
    """Says what `script` makes of the conversation: a text, or a list of calls (name, arguments as JSON text)."""

    script: Callable[[list[BaseMessage]], Any]
    seen: list[list[BaseMessage]] = []

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        whole = AIMessageChunk(content="")
        for chunk in self._stream(messages):
            whole += chunk.message
        return ChatResult(generations=[ChatGeneration(message=AIMessage(whole.content, tool_calls=whole.tool_calls))])

    def _stream(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        self.seen.append(list(messages))
        said = self.script(messages)
        if isinstance(said, str):
            reasoning, _, text = said.rpartition("|")
            if reasoning:
                yield piece(additional_kwargs={"reasoning_content": reasoning})
            for word in text.split(" "):
                yield piece(content=word + " ")
            return
        for index, (name, arguments) in enumerate(said):
            id = f"call-{len(messages)}-{index}"
            yield piece(tool_call_chunks=[{"name": name, "args": "", "id": id, "index": index}])
            for part in (arguments[:3], arguments[3:]):
                yield piece(tool_call_chunks=[{"name": None, "args": part, "id": None, "index": index}])


def piece(**fields: Any) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=AIMessageChunk(**{"content": "", **fields}))


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    log: Annotated[list[str], lambda before, more: before + more]
    recipe: str


@tool
def weather(place: str) -> str:
    """The weather in a place."""
    if place == "Atlantis":
        raise ValueError("There is no such place.")
    return f"Sun in {place}"


@tool
def book(place: str) -> str:
    """Book a journey, if a person agrees."""
    first = interrupt({"message": f"Book {place}?"})
    second = interrupt("Really?")
    return f"Booked {place}: {first}, {second}"


@tool
def reserve(place: str) -> str:
    """Reserve a room, if a person agrees."""
    answer = interrupt({"message": f"Reserve {place}?"})
    return f"Reserved {place}" if answer["approved"] else f"Not reserved {place}"


TOOLS = (weather, book, reserve)


def script(messages: list[BaseMessage]) -> Any:
    last = messages[-1]
    if last.type == "tool":
        return f"It says: {last.text}"
    said = last.text
    if said.startswith("call"):
        _, name, arguments = said.split(" ", 2)
        return [(name, arguments)]
    if said == "both":
        return [("weather", '{"place": "Oslo"}'), ("weather", '{"place": "Atlantis"}')]
    return f"Thinking|You said {said}"


def graph(*, checkpointer: Any = None, say: Callable[[list[BaseMessage]], Any] = script) -> Any:
    model = Scripted(script=say)

    async def talk(state: State) -> dict[str, Any]:
        answer = await model.ainvoke(state["messages"])
        return {"messages": [answer], "log": ["talked"]}

    builder = StateGraph(State)
    builder.add_node("talk", talk)
    builder.add_node("tools", ToolNode(list(TOOLS), handle_tool_errors=True))
    builder.add_edge(START, "talk")
    builder.add_conditional_edges("talk", _next)
    builder.add_edge("tools", "talk")
    compiled = builder.compile(checkpointer=InMemorySaver() if checkpointer is None else checkpointer)
    compiled.name = "traveller"
    compiled.model = model
    return compiled


def _next(state: State) -> str:
    """Calls of tools that are not the graph's are the client's."""
    calls = getattr(state["messages"][-1], "tool_calls", ())
    own = {each.name for each in TOOLS}
    return "__end__" if any(call["name"] not in own for call in calls) else tools_condition(state)
