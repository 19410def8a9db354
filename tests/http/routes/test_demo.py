"""The page at `/`, and the streams that it alone reads."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest

from adapters import sse
from agent_server.http.routes import demo_routes
from tests.server import scripted, serving

RUN = {"threadId": "t1", "runId": "r1", "messages": [{"id": "u1", "role": "user", "content": "Hi"}]}


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>built</title><script>dark()</script>")
    (tmp_path / "assets" / "index-abc123.js").write_text("1")
    (tmp_path / "assets" / "other-def456.js").write_text("2")
    monkeypatch.setattr(demo_routes, "BUILT", tmp_path)
    return tmp_path


async def test_the_built_page_is_served_and_its_hashed_files_are_kept(built: Path):
    async with serving(scripted("x")) as running, httpx.AsyncClient(base_url=running.url) as client:
        page = await client.get("/")
        script = await client.get("/assets/index-abc123.js")
        missing = await client.get("/assets/none.js")
        outside = await client.get("/assets/%2e%2e/%2e%2e/%2e%2e/etc/passwd")
    assert "<title>built" in page.text and page.headers["cache-control"] == "no-cache"
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "immutable" in script.headers["cache-control"]
    assert "script-src 'self' 'sha256-fNefTR34fI4AKL70MFDWngBjZzPD/E9oLjTl18ee/nA=';" in policy, "of its script alone"
    assert missing.status_code == outside.status_code == 404


@pytest.mark.parametrize(
    ("accepted", "coding", "body"),
    [
        ("gzip, deflate, br", "br", b"brotli"),
        ("br;q=0, gzip;q=0.5", "gzip", b"gzip"),
        ("*", "br", b"brotli"),
        ("*;q=0, deflate", None, b"plain"),
        ("gzip;q=nonsense", None, b"plain"),
        ("", None, b"plain"),
    ],
)
async def test_the_smallest_file_that_the_client_decodes_is_sent(
    built: Path, accepted: str, coding: str | None, body: bytes
):
    script, page = built / "assets" / "index-abc123.js", built / "index.html"
    for file in (script, page):
        for ending, text in (("", b"plain"), (".br", b"brotli"), (".gz", b"gzip")):
            file.with_name(file.name + ending).write_bytes(text)
    headers = {"accept-encoding": accepted}
    async with serving(scripted("x")) as running, httpx.AsyncClient(base_url=running.url) as client:
        request = client.build_request("GET", "/assets/index-abc123.js", headers=headers)
        response = await client.send(request, stream=True)
        sent = b"".join([each async for each in response.aiter_raw()])
        plain = await client.get("/assets/other-def456.js", headers=headers)
        opening = client.build_request("GET", "/", headers=headers)
        opened = await client.send(opening, stream=True)
        first = b"".join([each async for each in opened.aiter_raw()])
    assert (response.headers.get("content-encoding"), sent) == (coding, body)
    assert response.headers["content-type"] == "text/javascript; charset=utf-8"
    assert response.headers["vary"] == "accept-encoding" and "immutable" in response.headers["cache-control"]
    assert (opened.headers.get("content-encoding"), first) == (coding, body)
    assert opened.headers["content-type"] == "text/html; charset=utf-8" and opened.headers["vary"] == "accept-encoding"
    assert plain.text == "2" and "content-encoding" not in plain.headers, "none was built for it"


async def test_without_a_build_a_page_says_how_to_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(demo_routes, "BUILT", tmp_path)
    async with serving(scripted("x")) as running, httpx.AsyncClient(base_url=running.url) as client:
        page = await client.get("/")
    assert page.status_code == 200 and "make demo" in page.text


async def test_the_page_can_be_switched_off():
    async with serving(scripted("x"), demo=False) as running, httpx.AsyncClient(base_url=running.url) as client:
        assert (await client.get("/")).status_code == 404
        assert (await client.post("/demo/wires")).status_code == 404
        assert list((await client.get("/copilotkit/info")).json()["agents"]) == ["default"]


async def test_a_run_is_read_on_two_wires_at_once_with_every_event():
    async with serving(scripted("Hello.")) as running, httpx.AsyncClient(base_url=running.url) as client:
        original = list(sse.parse([(await client.post("/agui", json=RUN)).content]))
        both = list(sse.parse([(await client.get("/demo/runs/r1/wires")).content]))
        one = list(sse.parse([(await client.get("/demo/runs/r1/wires?wire=openai")).content]))
    agui = [frame for frame in both if frame["event"] == "agui"]
    assert [frame["id"] for frame in agui] == [frame["id"] for frame in original]
    assert [_timeless(frame) for frame in one] == [_timeless(frame) for frame in both if frame["event"] == "openai"]
    content = [json.loads(frame["data"]) for frame in one if frame["data"] != "[DONE]"]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in content) == "Hello."
    assert one[-1]["data"] == "[DONE]" and one[-1]["id"] == agui[-1]["id"]


def _timeless(frame):
    """A frame without the second in which it was encoded: two reads may fall into two."""
    return {**frame, "data": re.sub(r'"created":\d+', '"created":0', frame["data"])}


async def test_a_run_that_is_no_longer_kept_is_an_error_or_nothing_as_its_reader_wants():
    async with serving(scripted("x")) as running, httpx.AsyncClient(base_url=running.url) as client:
        refused = await client.get("/demo/runs/gone/wires")
        nothing = await client.get("/demo/runs/gone/wires?unknown=empty")
    assert refused.status_code == 404
    assert nothing.status_code == 204 and nothing.content == b""


async def test_a_log_is_put_on_another_wire():
    async with serving(scripted("Hello.")) as running, httpx.AsyncClient(base_url=running.url) as client:
        run = (await client.post("/agui", json={**RUN, "protocolVersion": "1.0"})).content
        live = (await client.get("/demo/runs/r1/wires?wire=openai")).content
        log = b"\n".join(frame["data"].encode() for frame in sse.parse([run]))
        again = await client.post("/demo/wires?wire=openai", content=log)
    live_chunks = [_delta(frame) for frame in sse.parse([live])]
    assert [_delta(frame) for frame in sse.parse([again.content])] == live_chunks


def _delta(frame: dict[str, str]) -> tuple[str, object]:
    data = frame["data"]
    return frame["id"], data if data == "[DONE]" else json.loads(data)["choices"]


@pytest.mark.parametrize("log", [b"{}", b'{"type":"NO_SUCH"}', b"text", b'{"type":"RUN_STARTED"}', b"\xff\xfe"])
async def test_a_line_that_is_no_event_is_named(log: bytes):
    async with serving(scripted("x")) as running, httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.post("/demo/wires", content=b'{"type":"RUN_STARTED","threadId":"t","runId":"r"}\n' + log)
    assert answer.status_code == 400 and "Line 2 is not an AG-UI event." in answer.text


async def test_an_unknown_wire_is_refused():
    async with serving(scripted("x")) as running, httpx.AsyncClient(base_url=running.url) as client:
        assert (await client.post("/demo/wires?wire=telegraph")).status_code == 400
        assert (await client.get("/demo/runs/none/wires")).status_code == 404


async def test_a_log_of_this_server_is_taken_whole_and_one_with_foreign_metadata_is_refused_by_its_line():
    chat = {"model": "default", "messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "stream": True}
    async with serving(scripted("Hello there.")) as running, httpx.AsyncClient(base_url=running.url) as client:
        run_id = (await client.post("/v1/chat/completions", json=chat)).headers["x-run-id"]
        replayed = await client.get(f"/agui/runs/{run_id}/events")
        log = "\n".join(frame["data"] for frame in sse.parse([replayed.content]))
        taken = await client.post("/demo/wires", content=log)
        foreign = '{"type":"RUN_ERROR","message":"m","metadata":{"param":["a","b"]}}'
        refused = await client.post("/demo/wires", content=f"{log}\n{foreign}")
    assert '"tokens":[[' in log and '"timings":{' in log
    assert taken.status_code == 200 and "[DONE]" in taken.text
    lines = log.count("\n") + 2
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, f"Line {lines} is not an AG-UI event.")


@pytest.mark.parametrize("name", ["a" * 300, "%00", "a" * 300 + ".js"])
async def test_a_name_that_no_file_can_have_is_not_found(built: Path, name: str):
    async with serving(scripted("x")) as running, httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.get(f"/assets/{name}", headers={"Accept-Encoding": "gzip, br"})
    assert answer.status_code == 404


@pytest.mark.parametrize(
    ("value", "status"),
    [("[" * 100 + "]" * 100, 200), ("[" * 955 + "]" * 955, 400), ("[" + "[]," * 120_000 + "1]", 413)],
)
async def test_an_event_that_could_not_be_sent_again_is_refused(value: str, status: int):
    async with serving(scripted("x")) as running, httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.post("/demo/wires", content='{"type":"CUSTOM","name":"x","value":' + value + "}")
    assert answer.status_code == status
