"""One table of error kinds, on every wire."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from adapters.errors import KINDS, TABLE, RequestError, Wire, payload, response, row
from agent_server.engine_protocol.protocol import ErrorKind as EngineKind

WIRES = get_args(Wire)


def test_the_table_holds_every_kind_of_the_engine_and_of_requests():
    assert set(KINDS) == set(TABLE)
    assert set(get_args(EngineKind)) <= set(KINDS)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_wire_says_every_kind_in_a_small_body(wire, kind):
    answer = response(wire, RequestError(kind, "m\ud800" * 20_000, param="p" * 20_000))
    assert answer.status in (row(kind).status, 529)
    assert len(answer.body) < 16_384
    assert isinstance(json.loads(answer.body), dict)


def test_the_bodies_of_the_known_wires():
    error = RequestError("context_length_exceeded", "Too long.", param="messages")
    assert json.loads(response("openai", error).body) == {
        "error": {
            "message": "Too long.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    }
    assert json.loads(response("anthropic", error, request_id="req_1").body) == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "prompt is too long: Too long."},
        "request_id": "req_1",
    }  # fmt: skip
    assert json.loads(response("agui", error).body) == {
        "error": {"code": "context_length_exceeded", "message": "Too long.", "retryable": False, "param": "messages"}
    }
    assert payload("websocket", "timeout", "Slow.", request_id="gen_1") == {
        "type": "error", "error": "timeout", "message": "Slow.", "recoverable": True, "recovery_action": "retry", "request_id": "gen_1",
    }  # fmt: skip
    assert payload("copilotkit", "not_found", "No such agent.") == {"error": "Not found", "message": "No such agent."}


def test_retry_after_is_said_where_a_retry_helps():
    assert response("openai", RequestError("rate_limited", "", retry_after=2.1)).headers == {"Retry-After": "3"}
    assert response("openai", RequestError("overloaded", "")).headers == {"Retry-After": "1"}
    assert response("openai", RequestError("invalid_request", "")).headers == {}
    assert response("anthropic", RequestError("overloaded", "")).status == 529
    assert response("agui", RequestError("unauthorized", "")).headers == {"WWW-Authenticate": "Bearer"}


def test_an_unknown_kind_is_an_internal_error():
    assert row("no_such_kind") is TABLE["internal"]
