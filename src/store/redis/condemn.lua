-- Notes that the store has lost something, unless its epoch is not the one any more that was looked at. Replies 1, or 0.
-- KEYS: epoch. ARGV: the id that stood there ('' none), the generation that was known, what was lost.
local stands, lost, generation = unpack(redis.call('HMGET', KEYS[1], 'id', 'lost', 'generation'))
if (stands or '') ~= ARGV[1] or (lost and lost ~= '') then
  return 0
end
redis.call('HSET', KEYS[1], 'lost', ARGV[3], 'generation', math.max(tonumber(generation or 0), tonumber(ARGV[2])))
return 1
