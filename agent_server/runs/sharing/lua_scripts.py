"""What Redis does in one step. Every script may be sent again after an answer that was lost.

A gateway whose lease is gone may write nothing, and only the runs of such a gateway may be declared dead: as both are
tested where the writing is done, a run has one terminal event, whichever gateway writes it.
"""

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
local known = redis.call('HMGET', KEYS[3], 'instance', 'ended', 'dead')
local mine = known[1] == ARGV[4]
if mine and known[3] then return {'dead'} end
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

APPEND = """
-- KEYS lease, events ...; ARGV of each: id, oldest id to keep, first number, events, seconds
if redis.call('EXISTS', KEYS[1]) == 0 then return 'lapsed' end
for i = 2, #KEYS do
  local a = (i - 2) * 5
  local added = redis.pcall('XADD', KEYS[i], 'MINID', '=', ARGV[a + 2], ARGV[a + 1], 'f', ARGV[a + 3], 'e', ARGV[a + 4])
  if type(added) == 'table' and added.err and not string.find(added.err, 'equal or smaller', 1, true) then
    return added
  end
  redis.call('EXPIRE', KEYS[i], ARGV[a + 5])
end
return 'ok'
"""

LEAVE = (
    NEXT
    + """
-- KEYS runs, record, thread, events; ARGV entry, instance, seconds, base of control keys
if redis.call('HGET', KEYS[2], 'instance') == ARGV[2] then
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
local known = redis.call('HMGET', KEYS[3], 'instance', 'ended')
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
