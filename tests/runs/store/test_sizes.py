"""How much a tenant keeps."""

from __future__ import annotations

import pytest

from adapters.errors import RequestError
from agent_server.runs.store import Store
from agent_server.runs.store.connections import StoreUnavailable
from agent_server.runs.store.rows import encoded
from agent_server.runs.store.sizes import CACHED_SECONDS, StorageLimit, stored_bytes


async def _kept(store: Store, tenant: str) -> int:
    return await store.read(lambda connection: stored_bytes(connection, tenant))


async def test_bytes_of_all_bodies_of_one_tenant_are_counted(store: Store):
    assert await _kept(store, "a") == 0
    body = {"text": "äöü\\x"}
    await store.save_response("a", "resp", body)
    await store.save_response("b", "resp", {"text": "x" * 100})
    response = len(str(encoded(body)).encode())
    assert await _kept(store, "a") == response
    await store.keep_run("a", "t", "r", "ä\\")
    assert await _kept(store, "a") == response + 3
    await store.begin_run("a", "t", "r", messages=[{"id": "u1", "role": "user", "content": "hello"}])
    with_message = await _kept(store, "a")
    assert with_message > response + 3 + len("hello")
    await store.delete_message("a", "t", "u1")
    assert await _kept(store, "a") >= with_message  # a removed message can be had back


async def test_a_sum_is_made_once_in_some_seconds_and_after_a_removal():
    class Counted:
        removals_made, kept, sums = 0, 10, 0

        async def read(self, work: object) -> int:
            self.sums += 1
            return self.kept

    store, now = Counted(), [0.0]
    limit = StorageLimit(store, 20, lambda: now[0])  # type: ignore[arg-type]
    for _ in range(3):
        await limit.check("a")
    assert store.sums == 1
    store.kept, now[0] = 20, CACHED_SECONDS
    for _ in range(2):
        with pytest.raises(RequestError) as refused:
            await limit.check("a")
    assert store.sums == 2 and refused.value.kind == "forbidden" and "20 bytes are kept" in refused.value.message
    store.kept, store.removals_made = 0, 1
    await limit.check("a")
    assert store.sums == 3


async def test_a_store_that_cannot_be_measured_refuses_nobody():
    class Away:
        removals_made = 0

        async def read(self, work: object) -> int:
            raise StoreUnavailable("away")

    await StorageLimit(Away(), 1).check("a")  # type: ignore[arg-type]
