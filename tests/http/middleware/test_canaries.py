"""Words that nobody else uses, sent in every place that a client or a tool fills, are told to nobody else."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest

from agent_server.agents import Agent, tool
from agent_server.engines.scripted import Fault, Script
from agent_server.observability.telemetry import IdFilter, JsonFormatter, LineFormatter
from tests.server import scripted, serving

BODY, HEADER, RESULT, KEY = "canary-body-41", "canary-header-42", "canary-result-43", "canary-key-44"
CANARIES = (BODY, HEADER, RESULT, KEY)


class Everything(logging.Handler):
    """All records of all loggers at all levels, in both forms."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.addFilter(IdFilter())
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith(("httpx", "httpcore", "tests")):  # the client's own
            self.text += LineFormatter("%(message)s").format(record) + JsonFormatter().format(record)


@tool
def leak(word: str) -> str:
    """Tell what must not be told."""
    raise ValueError(RESULT)


def message(**more: Any) -> dict[str, Any]:
    return {"role": "user", "content": BODY, **more}


RUN = {"threadId": "t", "runId": "r", "protocolVersion": "1.0", "messages": [message(id="u")]}
BROKEN: list[tuple[str, Any]] = [
    ("/agui", {**RUN, "runId": 7}),
    ("/agui", {**RUN, "messages": [message(id="u", role=BODY)]}),
    ("/agui", {**RUN, "forwardedProps": {"temperature": BODY}}),
    ("/v1/chat/completions", {"model": BODY, "messages": [message()], "seed": BODY}),
    ("/v1/chat/completions", {"model": "default", "messages": [message(role=BODY)]}),
    ("/v1/messages", {"model": "default", "max_tokens": BODY, "messages": [message()]}),
    ("/v1/responses", {"model": "default", "input": [{"type": BODY}]}),
    ("/copilotkit", {"method": BODY, "body": BODY}),
    ("/agui/nobody", RUN),
]


async def test_they_are_in_no_log_no_metric_and_no_error(monkeypatch: pytest.MonkeyPatch):
    log, root = Everything(), logging.getLogger()
    call = f'<tool_call>\n{{"name": "leak", "arguments": {{"word": "{BODY}"}}}}\n</tool_call>'
    fault = Fault(action="crash", after=1)
    engine = scripted([Script(text=call), Script(text="Sorry."), Script(text="x y z", fault=fault)])
    monkeypatch.setattr(logging.getLogger("agent_server"), "propagate", True)
    root.addHandler(log)
    before, level = root.level, logging.getLogger("agent_server").level
    root.setLevel(logging.DEBUG)
    logging.getLogger("agent_server").setLevel(logging.DEBUG)
    answers = ""
    try:
        headers = {"x-api-key": KEY, "x-note": HEADER, "user-agent": HEADER, "cookie": HEADER}
        async with (
            serving(engine, agents=[Agent(name="default", tools=[leak])], api_keys=(f"acme:{KEY}",)) as running,
            httpx.AsyncClient(base_url=running.url, headers=headers) as http,
        ):
            assert "RUN_FINISHED" in (await http.post("/agui", json=RUN)).text
            answers += (await http.post("/agui", json={**RUN, "threadId": "t2", "runId": "r2"})).text
            for path, sent in BROKEN:
                answer = await http.post(path, json=sent)
                assert 400 <= answer.status_code < 500, (path, sent, answer.text)
                assert not any(word in answer.text for word in CANARIES), (path, sent, answer.text)
                answers += answer.text
            answers += (await http.post("/agui", content=f'{{"{BODY}'.encode())).text
            answers += (await http.get("/agui/threads/nothing", headers={"x-api-key": f"wrong-{KEY}"})).text
            answers += (await http.get("/metrics")).text
    finally:
        root.removeHandler(log)
        root.setLevel(before)
        logging.getLogger("agent_server").setLevel(level)
    assert "RUN_ERROR" in answers and log.text
    assert [word for word in CANARIES if word in log.text] == []
    assert [word for word in CANARIES if word in answers] == []
