-- Begins an epoch: the first of a namespace, or the next one after a loss that an operator accepted. Replies 1, or 0 if
-- the epoch is not the expected one any more.
-- KEYS: epoch. ARGV: new id, the id that stands there ('' none), 'first' or 'next', the least generation before.
local stands, lost, generation = unpack(redis.call('HMGET', KEYS[1], 'id', 'lost', 'generation'))
if (stands or '') ~= ARGV[2] or (ARGV[3] == 'first' and lost) then
  return 0
end
local before = math.max(tonumber(generation or 0), tonumber(ARGV[4]))
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'generation', before + 1, 'count', 0, 'founded', now, 'open', 0, 'lost', '')
return 1
