-- Adds one to a field of the epoch and replies what it is now, or nothing if it is another epoch.
-- KEYS: epoch. ARGV: its id, the field.
local stands, count = unpack(redis.call('HMGET', KEYS[1], 'id', ARGV[2]))
if stands ~= ARGV[1] then
  return false
end
count = tonumber(count or 0) + 1
redis.call('HSET', KEYS[1], ARGV[2], count)
return count
