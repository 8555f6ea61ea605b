-- Gives a name another end of its time, if the known one is its end still.
-- KEYS: names by the end of their time. ARGV: name, its known end, its new one or 0 for none.
if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0) ~= tonumber(ARGV[2]) then
  return 0
end
if ARGV[3] == '0' then
  redis.call('ZREM', KEYS[1], ARGV[1])
else
  redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
end
return 0
