-- What a fleet knows of time: what it adds to the server's clock in place of its jumps, and how far time has come.
-- KEYS: clock. ARGV: the time of who asks ('' unknown), the offset that he found, the one that is to stand ('' the same).
-- Replies the server's clock, the offset, and how far time had come (0 unknown), all in milliseconds.
local mine, found, wanted = unpack(ARGV)
local offset, reached = unpack(redis.call('HMGET', KEYS[1], 'offset', 'reached'))
offset, reached = offset or '0', reached or '0'
if wanted ~= '' and found == offset then
  offset = wanted
end
local furthest = reached
if mine ~= '' and tonumber(mine) > tonumber(reached) then
  furthest = mine
end
-- A server that takes no writes tells the time all the same.
redis.pcall('HSET', KEYS[1], 'offset', offset, 'reached', furthest)
local now = redis.call('TIME')
return {now[1] * 1000 + math.floor(now[2] / 1000), tonumber(offset), tonumber(reached)}
