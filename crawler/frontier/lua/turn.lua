-- Leave to send a request to a host: so many at a time, so long after the last one.
-- KEYS: requests under way (zset, token -> when it is forgotten), when the next may be sent, a hold,
-- workers that send to the host (zset, worker -> when it counts as gone)
-- ARGV: token (worker and number), how many at a time, milliseconds between two, milliseconds until
-- a token is forgotten
-- Returns {"go", milliseconds to wait}, {"full", 0} or {"hold", milliseconds that it lasts}.
local call = redis.call
local running, next_at, hold, users = unpack(KEYS)
local token, most = ARGV[1], tonumber(ARGV[2])
local delay_ms, forget_ms = tonumber(ARGV[3]), tonumber(ARGV[4])
-- Longer than a turn is used again. Where workers are more than turns, they change so often.
local GONE_MS, CHANGE_MS = 2500, 2000
local worker = string.match(token, "^%S+")
local time = call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local held_ms = call("PTTL", hold)
if held_ms > 0 then
  return {"hold", held_ms}
end

call("ZADD", users, now + GONE_MS, worker)
call("ZREMRANGEBYSCORE", users, "-inf", now)
call("PEXPIRE", users, GONE_MS)
call("ZREMRANGEBYSCORE", running, "-inf", now)
local names, under_way, own = call("ZRANGE", users, 0, -1), call("ZRANGE", running, 0, -1), 0
for _, other in ipairs(under_way) do
  own = own + (string.match(other, "^%S+") == worker and 1 or 0)
end
table.sort(names)
local rank = 0
for i, name in ipairs(names) do
  rank = name == worker and i or rank
end
local turn = (rank + math.floor(now / CHANGE_MS)) % #names
local share = math.floor(most / #names) + (turn < most % #names and 1 or 0)
if #under_way >= most or own >= share then
  return {"full", 0}
end

local at = math.max(now, tonumber(call("GET", next_at) or "0"))
if delay_ms > 0 then
  call("SET", next_at, at + delay_ms, "PX", at + delay_ms - now + 1)
end
call("ZADD", running, at + forget_ms, token)
call("PEXPIRE", running, at - now + forget_ms)
return {"go", at - now}
