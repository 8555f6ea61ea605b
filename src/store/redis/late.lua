-- Whoever begins a run has been told after his timeout that nothing was sent. A step that comes later must not be made.
-- Gives back the server's clock, in milliseconds, if it is past the last moment.
local function passed(last)
  local time = redis.call('TIME')
  local clock = time[1] * 1000 + time[2] / 1000
  return clock > tonumber(last) and string.format('%.0f', clock)
end

