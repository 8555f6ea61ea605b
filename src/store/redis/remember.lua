-- Keeps a value and replies the write id and the value before it; the same write sent again gets the same reply, unless
-- another one came between: then it counts once more, after that one, which is in its reply.
-- KEYS: the name. ARGV: write id, value, milliseconds of its life (0: for ever).
local kept = redis.call('HMGET', KEYS[1], 'write', 'value', 'before')
if kept[1] == ARGV[1] then
  return {ARGV[1], kept[3]}
end
redis.call('HSET', KEYS[1], 'write', ARGV[1], 'value', ARGV[2])
if kept[2] then
  redis.call('HSET', KEYS[1], 'before', kept[2])
end
if ARGV[3] == '0' then
  redis.call('PERSIST', KEYS[1])
else
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return {ARGV[1], kept[2]}
