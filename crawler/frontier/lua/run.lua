-- Common part of all scripts of a shared run; prepended to each of them.
-- KEYS[1]: prefix of all keys, `{freshet:DATABASE:SPIDER}:`
-- ARGV: id of the run, name of this worker, duration of a lease in ms, time until keys expire in ms,
--       sequence number of this worker's message
--
-- Keys of a spider:
-- run      hash   state of the run: id, state (preparing, open, ending), run, started, preparer,
--                  closer, feeder, feeder_until, fed (number of entries so far), expired (number of
--                  expired leases so far), beat (last heartbeat), settled (end of the grace period)
-- tries     hash   entry -> number of leases so far; kept if the run is interrupted
--
-- Keys of a run, which contain its id:
-- pending   zset   queued entries, in order
-- suspects  zset   entries whose lease has expired twice; each worker leases one at a time
-- leased    zset   entry -> expiry of its lease
-- holders   hash   entry -> worker that has leased it
-- holders:W set    entries leased to worker W
-- trying    hash   worker -> suspect that it has leased
-- bodies    hash   entry -> request as JSON, or key of the target if it is not the entry's name
-- workers   zset   worker -> time when it counts as crashed
-- members   set    all workers that ever joined the run
-- messages  hash   worker -> sequence number of its last message
-- counts    hash   counts of all completed entries
-- shares    hash   counts of each worker
-- seen      set    fingerprints of requests
-- closed    set    hosts that get no more requests
-- postponed set    entries that are not queued again, although their targets remain due
-- asked     hash   host -> number of requests, if hosts have a cap
-- wake      list   tokens; each lets one idle worker, which waits for one, try to lease entries
local call = redis.call
local base, worker = KEYS[1], ARGV[2]
local lease_ms, expiry_ms = tonumber(ARGV[3]), tonumber(ARGV[4])
local FIRST = 6
local time = call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local run, tries = base .. "run", base .. "tries"
local NAMES = {
  "pending", "suspects", "leased", "holders", "trying", "bodies", "workers", "members", "counts",
  "shares", "seen", "closed", "postponed", "asked", "messages", "wake",
}

local function keys_of(id)
  local keys = {}
  for _, name in ipairs(NAMES) do
    keys[name] = base .. id .. ":" .. name
  end
  return keys
end

local of = keys_of(ARGV[1])

-- State of the run, read once per script; scripts that change it update this table.
local run_fields = {}
do
  local names = {"id", "state", "feeder", "feeder_until", "beat", "settled"}
  for i, value in ipairs(call("HMGET", run, unpack(names))) do
    run_fields[names[i]] = value
  end
end

local function is_over()
  return run_fields.id ~= ARGV[1]
end

local function is_alive(name)
  local expires = name and call("ZSCORE", of.workers, name)
  return expires and tonumber(expires) > now
end

-- Lua can pass about 8,000 arguments to a command; even, for pairs.
local MAX_ARGS = 4000
-- Call a command with all of these arguments. Returns its replies, if they are lists, as one list.
local function call_with(command, key, values)
  local replies = {}
  for first = 1, #values, MAX_ARGS do
    local last = math.min(first + MAX_ARGS - 1, #values)
    local reply = call(command, key, unpack(values, first, last))
    for _, value in ipairs(type(reply) == "table" and reply or {}) do
      replies[#replies + 1] = value
    end
  end
  return replies
end

-- If no worker has sent a heartbeat for long, the server was suspended, not the workers. No lease
-- expires or is granted in the following grace period, so that all workers can renew theirs.
local GRACE_MS = 3000
local function beat()
  local last = tonumber(run_fields.beat or now)
  if now - last > lease_ms / 2 then
    run_fields.settled = now + GRACE_MS
    call("HSET", run, "settled", run_fields.settled)
  end
  call("HSET", run, "beat", now)
  call("ZADD", of.workers, now + lease_ms, worker)
  call("SADD", of.members, worker)
end

local function keep()
  call("PEXPIRE", run, expiry_ms)
  call("PEXPIRE", tries, expiry_ms)
  call("PEXPIRE", of.holders .. ":" .. worker, expiry_ms)
  for _, key in pairs(of) do
    call("PEXPIRE", key, expiry_ms)
  end
end

-- Return 1 if this worker is the feeder, or becomes it: one worker at a time adds due targets. The
-- feeder calls this every second.
local FEEDER_MS = 5000
local function feeds()
  if run_fields.feeder ~= worker then
    local ends = run_fields.feeder and tonumber(run_fields.feeder_until)
    if run_fields.state ~= "open" or (ends and ends > now) then
      return 0
    end
  end
  run_fields.feeder = worker
  call("HSET", run, "feeder", worker, "feeder_until", now + math.min(lease_ms, FEEDER_MS))
  return 1
end

-- Return whether this message arrived after a later one from the same worker, which no longer waits
-- for the reply.
local function is_stale()
  local last = tonumber(call("HGET", of.messages, worker) or "0")
  call("HSET", of.messages, worker, math.max(last, tonumber(ARGV[FIRST - 1])))
  return tonumber(ARGV[FIRST - 1]) < last
end

local function is_settled()
  return now >= tonumber(run_fields.settled or "0")
end

-- End the leases of entries. Returns the worker that had leased each entry, or false.
local function release(entries)
  local holders, of_holder = call_with("HMGET", of.holders, entries), {}
  for i, holder in ipairs(holders) do
    if holder then
      of_holder[holder] = of_holder[holder] or {}
      table.insert(of_holder[holder], entries[i])
    end
  end
  for holder, leased in pairs(of_holder) do
    local suspect = call("HGET", of.trying, holder)
    for _, entry in ipairs(suspect and leased or {}) do
      if entry == suspect then
        call("HDEL", of.trying, holder)
      end
    end
    call_with("SREM", of.holders .. ":" .. holder, leased)
  end
  call_with("HDEL", of.holders, entries)
  call_with("ZREM", of.leased, entries)
  return holders
end

-- Lease entries to this worker, or renew its leases on them.
local function take(entries)
  local expiries, holders = {}, {}
  for _, entry in ipairs(entries) do
    table.insert(expiries, now + lease_ms)
    table.insert(expiries, entry)
    table.insert(holders, entry)
    table.insert(holders, worker)
  end
  call_with("ZADD", of.leased, expiries)
  call_with("HSET", of.holders, holders)
  call_with("SADD", of.holders .. ":" .. worker, entries)
end

-- Return the entries leased to this worker.
local function held()
  return call("SMEMBERS", of.holders .. ":" .. worker)
end

local function waiting()
  return call("ZCARD", of.pending) + call("ZCARD", of.suspects)
end

local function others()
  local count = call("ZCOUNT", of.workers, now, "+inf")
  return is_alive(worker) and count - 1 or count
end

-- Let up to `count` idle workers try to lease entries; tokens that nobody waits for stay in the list.
local function wake(count)
  local tokens = {}
  for i = call("LLEN", of.wake) + 1, math.min(count, others() + 1) do
    tokens[#tokens + 1] = 1
  end
  call_with("RPUSH", of.wake, tokens)
end

-- Queue leased entries again; these leases do not count as tries.
local function give_back(entries)
  for i, holder in ipairs(release(entries)) do
    local entry = entries[i]
    if holder then
      call("ZADD", of.pending, 0, entry)
      if call("HINCRBY", tries, entry, -1) <= 0 then
        call("HDEL", tries, entry)
      end
    end
  end
  wake(#entries)
end

-- Return the ms until a lease or the role of the feeder can expire, or the grace period ends. Only
-- for these, an idle worker has to try again without a token.
local function quiet_ms()
  local feeder_until = run_fields.feeder ~= worker and run_fields.feeder_until
  local first = call("ZRANGE", of.leased, 0, 0, "WITHSCORES")[2]
  local expires = math.min(tonumber(feeder_until or now + lease_ms), tonumber(first or now + lease_ms))
  return math.max(expires, tonumber(run_fields.settled or "0")) - now
end

-- idle: whether the worker requested entries and got none
local function status(more, idle)
  return {
    run_fields.state, feeds(), waiting(), call("ZCARD", of.leased), others() + 1, more,
    idle and quiet_ms() or 0,
  }
end
