-- Look-alikes of an unnamed call that stand in the way: a sorted set of their ids, each until the time that is its
-- score, or below zero from that time on. The key goes with the last of them; one that is unresolved has no end.
-- An end of '' takes the id out.
local function stand(key, id, till)
  if till ~= '' then
    redis.call('ZADD', key, till, id)
  elseif redis.call('ZREM', key, id) == 0 then
    return
  end
  local last = redis.call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
  if last[2] == 'inf' or redis.call('ZRANGEBYSCORE', key, '-inf', '0', 'LIMIT', '0', '1')[1] then
    redis.call('PERSIST', key)
  elseif last[2] then
    redis.call('PEXPIREAT', key, last[2])
  end
end
