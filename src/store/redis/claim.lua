-- Creates a record if its key has none.
-- KEYS: record, receipt, request, events, schedule, creation index, open, marker; for an unnamed call also its
--       look-alikes.
-- ARGV: write id, record, id, created at, due ('' never), event ('' none), request ('' none), scope, epoch, last moment;
--       for an unnamed call also now, its own end as a look-alike ('' none), the id that may be passed by ('' none).
-- Replies the write id alone if the record is this claim's; else the write id, what stands there, and what is known.
local write, record, id, created, due, event, request, scope, epoch, last = unpack(ARGV, 1, 10)
local alike, now, till, past = KEYS[9], ARGV[11], ARGV[12], ARGV[13]

local late = passed(last)
if late then
  return {write, 'late', late}
end

-- A bucket that has forgotten the epoch has forgotten its records: the key may have run.
if redis.call('GET', KEYS[8]) ~= epoch then
  return {write, 'forgotten'}
end

if alike and redis.call('EXISTS', KEYS[1]) == 0 then
  for _, range in ipairs({{'(' .. now, '+inf'}, {'-' .. now, '0'}}) do
    for _, other in ipairs(redis.call('ZRANGEBYSCORE', alike, range[1], range[2], 'LIMIT', 0, 2)) do
      if other ~= past then
        return {write, 'alike', other}
      end
    end
  end
end

local stored = redis.call('SET', KEYS[1], record, 'NX', 'GET')
if stored then
  if string.sub(stored, 34, 49) == write then
    return write
  end
  return {write, 'record', stored, redis.call('GET', KEYS[2])}
end

if request ~= '' then
  redis.call('SET', KEYS[3], request)
end
-- A key of ours that holds something else takes nothing, and then there must be no record either.
local failed
local function add(...)
  local reply = not failed and redis.pcall(...)
  failed = failed or type(reply) == 'table' and reply
end

if event ~= '' then
  add('RPUSH', KEYS[4], event)
end
if due ~= '' then
  add('ZADD', KEYS[5], due, id)
end
add('ZADD', KEYS[6], created, id)
add('ZADD', KEYS[7], 'INCR', '1', scope)
if failed then
  redis.call('DEL', KEYS[1], KEYS[3])
  redis.pcall('LSET', KEYS[4], -1, '')
  redis.pcall('LREM', KEYS[4], -1, '')
  redis.pcall('ZREM', KEYS[5], id)
  redis.pcall('ZREM', KEYS[6], id)
  return failed
end
if alike and till ~= '' then
  stand(alike, id, till)
end
return write
