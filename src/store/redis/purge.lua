-- Takes operations out of the indexes of their bucket whose records are gone. Replies how many.
-- KEYS: schedule, creation index, then the record of each id.
-- ARGV: the ids.
local gone = 0
for i, id in ipairs(ARGV) do
  if redis.call('EXISTS', KEYS[i + 2]) == 0 then
    redis.call('ZREM', KEYS[1], id)
    redis.call('ZREM', KEYS[2], id)
    gone = gone + 1
  end
end
return gone
