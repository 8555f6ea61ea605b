-- Replaces a record that is still what the writer thought.
-- KEYS: record, receipt, request, events, schedule, open; where it touches its dead letter also the index of these; for
--       an unnamed call also its look-alikes.
-- ARGV: write id, expected head (format, owner, token, revision), record, its life in ms ('' for good), id,
--       place in the schedule ('' none), event ('' none), receipt ('' none), its life in ms,
--       'keep', 'put' or 'drop' the request, request, scope, last moment ('' none), its dead letter ('' untouched, its
--       place in the index, or 'close'); for an unnamed call also its end as a look-alike ('' none).
-- Replies the write id alone if it is applied; else the write id and, if there is a record, record and receipt.
local write, expected, record, life, id, due, event, receipt, receipt_life, action, request, scope, last, letter,
  till = unpack(ARGV)
local alike = KEYS[letter == '' and 7 or 8]

-- Not the whole record: Lua hashes every byte of a string that it is given.
local head = redis.call('GETRANGE', KEYS[1], '0', '48')
if string.sub(head, 34) == write then
  return write
end
local late = last ~= '' and passed(last)
if late then
  return {write, 'late', late}
end
if string.sub(head, 1, 33) ~= expected then
  local stored = redis.call('GET', KEYS[1])
  return stored and {write, stored, redis.call('GET', KEYS[2])} or {write}
end

-- A record without an end is that of an unfinished operation.
local was_open = redis.call('PTTL', KEYS[1]) < 0

-- What may be refused comes first, so that a refusal changes nothing: a full server refuses any of these, and a key of
-- ours that holds something else its own.
if alike then
  redis.call('ZRANGE', alike, 0, 0)
end
local events = event ~= '' and redis.call('RPUSH', KEYS[4], event) or 0
local placed = due ~= '' and redis.pcall('ZADD', KEYS[5], due, id)
if type(placed) == 'table' then
  if events > 0 then
    redis.call('LSET', KEYS[4], -1, '')
    redis.call('LREM', KEYS[4], -1, '')
  end
  return placed
end

if life ~= '' then
  redis.call('SET', KEYS[1], record, 'PX', life)
else
  redis.call('SET', KEYS[1], record)
  if not was_open then
    redis.call('PERSIST', KEYS[3])
    redis.call('PERSIST', KEYS[4])
  end
end

if receipt ~= '' then
  redis.call('SET', KEYS[2], receipt, 'PX', receipt_life)
end
if action == 'put' then
  redis.call('SET', KEYS[3], request)
elseif action == 'drop' then
  redis.call('DEL', KEYS[3])
end
-- The bounds of operation::event: of more than 64, the first after the oldest 8 is left out.
if events > 64 then
  redis.call('LSET', KEYS[4], 8, '')
  redis.call('LREM', KEYS[4], 1, '')
end
if life ~= '' then
  redis.call('PEXPIRE', KEYS[4], life)
  if action ~= 'drop' then
    redis.call('PEXPIRE', KEYS[3], life)
  end
end
if was_open and life ~= '' then
  local left = redis.pcall('ZADD', KEYS[6], 'INCR', '-1', scope)
  if type(left) ~= 'table' and tonumber(left) <= 0 then
    redis.call('ZREM', KEYS[6], scope)
  end
elseif not was_open and life == '' then
  redis.pcall('ZADD', KEYS[6], 'INCR', '1', scope)
end
if due == '' then
  redis.pcall('ZREM', KEYS[5], id)
end
if letter == 'close' then
  redis.pcall('ZREM', KEYS[7], id)
elseif letter ~= '' then
  redis.pcall('ZADD', KEYS[7], letter, id)
end
if alike then
  stand(alike, id, till)
end
return write
