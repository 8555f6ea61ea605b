-- Takes operations out of the indexes of their bucket whose records are gone. Replies how many.
-- KEYS: schedule, creation index, dead letters, then the record, receipt, request and events of each id.
-- ARGV: the ids.
local gone = 0
for i, id in ipairs(ARGV) do
  local record = 4 * i
  if redis.call('EXISTS', KEYS[record]) == 0 then
    -- A server may keep what ran out until somebody looks at it.
    redis.call('EXISTS', KEYS[record + 1], KEYS[record + 2], KEYS[record + 3])
    redis.call('ZREM', KEYS[1], id)
    redis.call('ZREM', KEYS[2], id)
    redis.call('ZREM', KEYS[3], id)
    gone = gone + 1
  end
end
return gone
