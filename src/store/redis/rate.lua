-- Takes one call of a rate, by the server's clock (the generic cell rate algorithm). Sent twice it takes two: then the rate
-- is a little lower for a moment, never higher.
-- KEYS: when the call after the last one is due. ARGV: microseconds between two calls, calls at once.
-- Replies 0, or after how many microseconds one would be taken.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
-- It is never further ahead, unless the clock has gone back.
local due = math.min(tonumber(redis.call('GET', KEYS[1]) or 0), now + interval * burst)
local following = math.max(due, now) + interval
local wait = following - interval * burst - now
if wait > 0 then
  return math.ceil(wait)
end
redis.call('SET', KEYS[1], string.format('%.0f', following), 'PX', math.ceil((following - now) / 1000))
return 0
