-- Request permits to send requests to a host, within its concurrency and delay.
-- KEYS: permits in use (zset, token -> expiry), time of the next request, pause of the host, workers
--       that use the host (zset, worker -> time when it counts as gone), the same workers by name
--       (zset, all scores are 0)
-- ARGV: worker, maximum concurrency, delay between requests in ms, time until a token expires in ms,
--       tokens of the requested permits (worker and number); one if there is a delay
-- Returns {"go", ms to wait, number of permits, number of workers that use the host},
-- {"full", ms until the next attempt} or {"hold", remaining ms of the pause}.
local call = redis.call
local running, next_at, hold, users, ranks = unpack(KEYS)
local worker, concurrency = ARGV[1], tonumber(ARGV[2])
local delay_ms, forget_ms = tonumber(ARGV[3]), tonumber(ARGV[4])
local FIRST = 5
-- GONE_MS is longer than a permit is reused, and than a worker waits for its next attempt. If a host
-- has more workers than permits, the permits rotate among the workers every CHANGE_MS.
local GONE_MS, CHANGE_MS, RETRY_MS, MAX_RETRY_MS, MAX_GONE = 2500, 2000, 30, 1000, 1000
local time = call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local held_ms = call("PTTL", hold)
if held_ms > 0 then
  return {"hold", held_ms}
end

local gone = call("ZRANGEBYSCORE", users, "-inf", now, "LIMIT", 0, MAX_GONE)
if #gone > 0 then
  call("ZREM", users, unpack(gone))
  call("ZREM", ranks, unpack(gone))
end
call("ZADD", users, now + GONE_MS, worker)
call("ZADD", ranks, 0, worker)
call("PEXPIRE", users, GONE_MS)
call("PEXPIRE", ranks, GONE_MS)
call("ZREMRANGEBYSCORE", running, "-inf", now)
local under_way, own = call("ZRANGE", running, 0, -1), 0
for _, token in ipairs(under_way) do
  own = own + (string.match(token, "^%S+") == worker and 1 or 0)
end
local workers = call("ZCARD", ranks)
local remainder = concurrency % workers
local position = (call("ZRANK", ranks, worker) + math.floor(now / CHANGE_MS) * remainder) % workers
local share = math.floor(concurrency / workers) + (position < remainder and 1 or 0)
local free = math.min(#ARGV - FIRST + 1, concurrency - #under_way, share - own)
if free < 1 then
  -- All workers of the host together try a constant number of times a second.
  return {"full", math.min(MAX_RETRY_MS, RETRY_MS * math.ceil(workers / concurrency))}
end

local at = math.max(now, tonumber(call("GET", next_at) or "0"))
if delay_ms > 0 then
  call("SET", next_at, at + delay_ms, "PX", at + delay_ms - now + 1)
end
for i = FIRST, FIRST + free - 1 do
  call("ZADD", running, at + forget_ms, ARGV[i])
end
call("PEXPIRE", running, at - now + forget_ms)
return {"go", at - now, free, workers}
