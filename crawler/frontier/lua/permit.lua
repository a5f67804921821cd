-- Request a permit to send requests to a host, within its concurrency and delay.
-- KEYS: permits in use (zset, token -> expiry), time of the next request, pause of the host, workers
--       that use the host (zset, worker -> time when it counts as gone)
-- ARGV: token (worker and number), maximum concurrency, delay between requests in ms, time until a
--       token expires in ms
-- Returns {"go", ms to wait}, {"full", 0} or {"hold", remaining ms of the pause}.
local call = redis.call
local running, next_at, hold, users = unpack(KEYS)
local token, concurrency = ARGV[1], tonumber(ARGV[2])
local delay_ms, forget_ms = tonumber(ARGV[3]), tonumber(ARGV[4])
-- GONE_MS is longer than a permit is reused. If a host has more workers than permits, the permits
-- rotate among the workers every CHANGE_MS.
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
local position = (rank + math.floor(now / CHANGE_MS)) % #names
local share = math.floor(concurrency / #names) + (position < concurrency % #names and 1 or 0)
if #under_way >= concurrency or own >= share then
  return {"full", 0}
end

local at = math.max(now, tonumber(call("GET", next_at) or "0"))
if delay_ms > 0 then
  call("SET", next_at, at + delay_ms, "PX", at + delay_ms - now + 1)
end
call("ZADD", running, at + forget_ms, token)
call("PEXPIRE", running, at - now + forget_ms)
return {"go", at - now}
