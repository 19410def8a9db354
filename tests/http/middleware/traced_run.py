"""`python -m tests.http.middleware.traced_run TRACEPARENT`: one run with a tool, whose spans go to OTEL_EXPORTER_OTLP_ENDPOINT."""

from __future__ import annotations

import asyncio
import sys

import httpx

from agent_server.agents import Agent, tool
from agent_server.engines.scripted import Script
from agent_server.observability.tracing import start_exporting
from tests.server import scripted, serving

CALL = '<tool_call>\n{"name": "tide", "arguments": {"harbour": "Oslo"}}\n</tool_call>'
ASKED = {
    "threadId": "t", "runId": "r", "protocolVersion": "1.0",
    "messages": [{"id": "u", "role": "user", "content": "When?"}],
}  # fmt: skip


@tool
def tide(harbour: str) -> str:
    """Tell the tide."""
    return f"High at noon in {harbour}"


async def main(traceparent: str) -> None:
    engine = scripted([Script(text=CALL), Script(text="At noon.")])
    async with (
        serving(engine, agents=[Agent(name="sailor", tools=[tide])]) as running,
        httpx.AsyncClient(base_url=running.url, timeout=60) as http,
    ):
        answer = await http.post("/agui", json=ASKED, headers={"traceparent": traceparent})
        assert "RUN_FINISHED" in answer.text, answer.text


if __name__ == "__main__":
    assert start_exporting(), "name a collector by OTEL_EXPORTER_OTLP_ENDPOINT"
    asyncio.run(main(sys.argv[1]))
