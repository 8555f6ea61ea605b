-- Holds a name back until a moment, or longer if that was said before, and forgets what is over. Sent twice it says the
-- same, but that the second one finds the name held by the first.
-- KEYS: names by the end of their time. ARGV: name, its end, now, '1' only if nobody holds it, milliseconds of the key.
-- Replies when the time ends that somebody else holds it for, 0 if it is held for this one.
local key, name, till, now = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local known = tonumber(redis.call('ZSCORE', key, name) or 0)
if ARGV[4] == '1' and known > tonumber(now) then
  return known
end
if tonumber(till) > known then
  redis.call('ZADD', key, till, name)
end
for _, over in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, 100)) do
  redis.call('ZREM', key, over)
end
redis.call('PEXPIRE', key, ARGV[5])
return 0
