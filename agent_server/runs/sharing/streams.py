"""Runs in Redis: key names, the entries of a run's stream, and the scripts that change several keys at once.

All keys share one hash tag, so that a script may change several of them. Every script may be repeated after its answer
was lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from agent_server.runs.log import EventLog, FellBehind
from agent_server.settings import SharingLimits
from events.encode import decode, encode
from events.vocabulary import (
    Event,
    RunError,
    RunFinished,
)


class RunPlace(msgspec.Struct, frozen=True, array_like=True):
    """The location of a run: its gateway, its ids, and an instance that distinguishes runs which reuse an id.

    Encoded, it is the run's entry in its thread's queue and in its gateway's set of runs.
    """

    gateway: str
    tenant: str
    run_id: str
    thread_id: str
    instance: str

    @property
    def entry(self) -> bytes:
        return msgspec.json.encode(self)


def place_of(entry: bytes) -> RunPlace:
    return msgspec.json.decode(entry, type=RunPlace)


class RedisKeys:
    """Key names with one prefix. Servers that use the same Redis without sharing runs need different prefixes."""

    def __init__(self, prefix: str) -> None:
        self._base = "{" + prefix + "}:"
        self.gateways = self._base + "gateways"
        self.control_base = self._base + "control:"

    def lease(self, gateway: str) -> str:
        """The key that expires unless the gateway renews it."""
        return f"{self._base}lease:{gateway}"

    def runs(self, gateway: str) -> str:
        """The set of the gateway's unfinished runs."""
        return f"{self._base}runs:{gateway}"

    def control(self, gateway: str) -> str:
        """The stream of commands to the gateway, and of answers to its own."""
        return self.control_base + gateway

    def record(self, tenant: str, run_id: str) -> str:
        """The hash with a run's location and input."""
        return f"{self._base}run:{quote(tenant, '')}:{quote(run_id, '')}"

    def events(self, place: RunPlace) -> str:
        """The stream of a run's events."""
        return f"{self._base}events:{quote(place.tenant, '')}:{quote(place.run_id, '')}:{place.instance}"

    def thread(self, tenant: str, thread_id: str) -> str:
        """The queue of a thread: the current run, then those that wait."""
        return f"{self._base}thread:{quote(tenant, '')}:{quote(thread_id, '')}"


TERMINAL = (RunFinished, RunError)
RawEntry = tuple[bytes, Mapping[bytes, bytes]]


class StreamEntry(NamedTuple):
    """The encoded events with the numbers `first` to `last`."""

    first: int
    last: int
    data: bytes


def entry_id(number: int) -> str:
    return f"{number}-0"


def number_of(id: bytes) -> int:
    return int(id.partition(b"-")[0])


def cut(log: EventLog, after: int, limits: SharingLimits) -> StreamEntry | None:
    """Make the next entry after event number `after`, from the oldest event that is still in the log, or return
    None."""
    first = max(after + 1, log.oldest)
    lines: list[bytes] = []
    size = 0
    while first + len(lines) <= log.last and len(lines) < limits.entry_events and size < limits.entry:
        try:
            lines.append(encode(log.get(first + len(lines))))
        except FellBehind:  # impossible: nothing is appended meanwhile
            break
        size += len(lines[-1]) + 1
    return StreamEntry(first, first + len(lines) - 1, b"\n".join(lines)) if lines else None


def opened(entries: Iterable[RawEntry]) -> Iterator[tuple[int, Event]]:
    """Decode the numbered events of stream entries from Redis."""
    for _, fields in entries:
        yield from enumerate(map(decode, fields[b"e"].split(b"\n")), int(fields[b"f"]))


NEXT = """
local function tell_next(thread, control)
  local head = redis.call('LINDEX', thread, 0)
  if head then
    local key = control .. cjson.decode(head)[1]
    redis.call('XADD', key, 'MAXLEN', '~', 4096, '*', 'turn', head)
    redis.call('EXPIRE', key, 3600)
  end
end
"""

ENTER = """
-- KEYS lease, runs, record, thread, events; ARGV entry, queued, seconds, instance, again, field, value, ...
-- → {'ok', runs before it, id of its last event} or {'lapsed' | 'dead' | 'taken' | 'busy'}
if redis.call('EXISTS', KEYS[1]) == 0 then return {'lapsed'} end
local known = redis.call('HMGET', KEYS[3], 'instance', 'ended', 'dead', 'entry')
local mine = known[1] == ARGV[4]
if mine and (known[3] or known[4] ~= ARGV[1]) then return {'dead'} end
if known[1] and not mine and not known[2] then return {'taken'} end
local place = redis.call('LPOS', KEYS[4], ARGV[1])
if not place then
  place = redis.call('LLEN', KEYS[4])
  if ARGV[5] == '0' and place > tonumber(ARGV[2]) then return {'busy'} end
  redis.call('RPUSH', KEYS[4], ARGV[1])
end
if not mine then
  redis.call('DEL', KEYS[3])
  redis.call('HSET', KEYS[3], 'instance', ARGV[4], unpack(ARGV, 6))
end
redis.call('SADD', KEYS[2], ARGV[1])
for i = 2, 4 do redis.call('EXPIRE', KEYS[i], ARGV[3]) end
local tail = redis.call('XREVRANGE', KEYS[5], '+', '-', 'COUNT', 1)
return {'ok', place, tail[1] and tail[1][1] or '0-0'}
"""

RESUME = """
-- KEYS lease, runs, former runs, record, thread, events; ARGV former entry, entry, instance, seconds, owner
-- → {'ok', runs before it, id of its last event} or {'lapsed'} or {'gone'}
if redis.call('EXISTS', KEYS[1]) == 0 then return {'lapsed'} end
local known = redis.call('HMGET', KEYS[4], 'instance', 'ended', 'entry')
if known[1] ~= ARGV[3] or known[2] or (known[3] ~= ARGV[1] and known[3] ~= ARGV[2]) then return {'gone'} end
redis.call('HSET', KEYS[4], 'entry', ARGV[2], 'resumed', 1, 'owner', ARGV[5])
redis.call('SREM', KEYS[3], ARGV[1])
redis.call('SADD', KEYS[2], ARGV[2])
local place = redis.call('LPOS', KEYS[5], ARGV[1])
if place then
  redis.call('LSET', KEYS[5], place, ARGV[2])
else
  place = redis.call('LPOS', KEYS[5], ARGV[2])
  if not place then
    place = 0
    redis.call('LPUSH', KEYS[5], ARGV[2])
  end
end
for i = 4, 6 do redis.call('EXPIRE', KEYS[i], ARGV[4]) end
local tail = redis.call('XREVRANGE', KEYS[6], '+', '-', 'COUNT', 1)
return {'ok', place, tail[1] and tail[1][1] or '0-0'}
"""

APPEND = """
-- KEYS lease, then of each: events, record; ARGV of each: id, oldest id to keep, first number, events, seconds, entry
-- → 'lapsed', an error, or the numbers of those that another gateway has resumed
if redis.call('EXISTS', KEYS[1]) == 0 then return 'lapsed' end
local moved = {}
for i = 0, (#KEYS - 1) / 2 - 1 do
  local a, events = i * 6, KEYS[i * 2 + 2]
  local entry = redis.call('HGET', KEYS[i * 2 + 3], 'entry')
  if entry and entry ~= ARGV[a + 6] then
    moved[#moved + 1] = i
  else
    local oldest, id, first, data = ARGV[a + 2], ARGV[a + 1], ARGV[a + 3], ARGV[a + 4]
    local added = redis.pcall('XADD', events, 'MINID', '=', oldest, id, 'f', first, 'e', data)
    if type(added) == 'table' and added.err and not string.find(added.err, 'equal or smaller', 1, true) then
      return added
    end
    redis.call('EXPIRE', events, ARGV[a + 5])
  end
end
return moved
"""

LEAVE = (
    NEXT
    + """
-- KEYS runs, record, thread, events; ARGV entry, instance, seconds, base of control keys
local known = redis.call('HMGET', KEYS[2], 'instance', 'entry')
if known[1] == ARGV[2] and known[2] ~= ARGV[1] then return 'moved' end
if known[1] == ARGV[2] then
  redis.call('HSET', KEYS[2], 'ended', 1)
  redis.call('EXPIRE', KEYS[2], ARGV[3])
end
redis.call('EXPIRE', KEYS[4], ARGV[3])
redis.call('SREM', KEYS[1], ARGV[1])
if redis.call('LREM', KEYS[3], 0, ARGV[1]) > 0 then tell_next(KEYS[3], ARGV[4]) end
return 'ok'
"""
)

END_DEAD = (
    NEXT
    + """
-- KEYS lease, runs, record, thread, events
-- ARGV entry, instance, seconds, base of control keys, id of the last event, new id, first number, events
-- → 'ended', or 'alive', or 'moved' if more events came than were seen
if redis.call('EXISTS', KEYS[1]) == 1 then return 'alive' end
local known = redis.call('HMGET', KEYS[3], 'instance', 'ended', 'entry')
if known[1] == ARGV[2] and known[3] ~= ARGV[1] then
  redis.call('SREM', KEYS[2], ARGV[1])
  return 'ended'
end
if known[1] == ARGV[2] and not known[2] then
  local tail = redis.call('XREVRANGE', KEYS[5], '+', '-', 'COUNT', 1)
  if (tail[1] and tail[1][1] or '0-0') ~= ARGV[5] then return 'moved' end
  if ARGV[8] ~= '' then redis.call('XADD', KEYS[5], ARGV[6], 'f', ARGV[7], 'e', ARGV[8]) end
  redis.call('HSET', KEYS[3], 'ended', 1, 'dead', 1)
  redis.call('EXPIRE', KEYS[3], ARGV[3])
  redis.call('EXPIRE', KEYS[5], ARGV[3])
end
redis.call('SREM', KEYS[2], ARGV[1])
if redis.call('LREM', KEYS[4], 0, ARGV[1]) > 0 then tell_next(KEYS[4], ARGV[4]) end
return 'ended'
"""
)
