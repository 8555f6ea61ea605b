-- Takes one call of each of some rates or of none of them, by the server's clock (the generic cell rate algorithm). Sent
-- twice it takes two: then a rate is a little lower for a moment, never higher.
-- KEYS: when the call after the last one is due. ARGV: for each key microseconds between two calls, calls at once.
-- Replies which of them is used up for the longest, or 0, and after how many microseconds a call would be taken.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local following, used_up, longest = {}, 0, 0
for place, key in ipairs(KEYS) do
  local interval, burst = tonumber(ARGV[2 * place - 1]), tonumber(ARGV[2 * place])
  -- It is never further ahead, unless the clock has gone back.
  local due = math.min(tonumber(redis.call('GET', key) or 0), now + interval * burst)
  following[place] = math.max(due, now) + interval
  local wait = following[place] - interval * burst - now
  if wait > longest then
    used_up, longest = place, wait
  end
end
if used_up == 0 then
  for place, key in ipairs(KEYS) do
    redis.call('SET', key, string.format('%.0f', following[place]), 'PX', math.ceil((following[place] - now) / 1000))
  end
end
return {used_up, math.ceil(longest)}
