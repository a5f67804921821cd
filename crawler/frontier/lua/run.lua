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
-- holders   hash   entry -> worker
-- trying    hash   worker -> suspect that it has leased
-- bodies    hash   entry -> request as JSON, or key of the target if it is not the entry's name
-- workers   zset   worker -> time when it counts as crashed
-- members   set    all workers that ever joined the run
-- messages  hash   worker -> sequence number of its last message
-- counts    hash   counts of all completed entries
-- shares    hash   counts of each worker
-- seen      set    fingerprints of requests
-- closed    set    hosts that get no more requests
-- asked     hash   host -> number of requests, if hosts have a cap
local call = redis.call
local base, worker = KEYS[1], ARGV[2]
local lease_ms, expiry_ms = tonumber(ARGV[3]), tonumber(ARGV[4])
local FIRST = 6
local time = call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local run, tries = base .. "run", base .. "tries"
local NAMES = {
  "pending", "suspects", "leased", "holders", "trying", "bodies", "workers", "members", "counts",
  "shares", "seen", "closed", "asked", "messages",
}

local function keys_of(id)
  local keys = {}
  for _, name in ipairs(NAMES) do
    keys[name] = base .. id .. ":" .. name
  end
  return keys
end

local of = keys_of(ARGV[1])

local function is_over()
  return call("HGET", run, "id") ~= ARGV[1]
end

local function is_alive(name)
  local expires = name and call("ZSCORE", of.workers, name)
  return expires and tonumber(expires) > now
end

-- If no worker has sent a heartbeat for long, the server was suspended, not the workers. No lease
-- expires or is granted in the following grace period, so that all workers can renew theirs.
local GRACE_MS = 3000
local function beat()
  local last = tonumber(call("HGET", run, "beat") or now)
  if now - last > lease_ms / 2 then
    call("HSET", run, "settled", now + GRACE_MS)
  end
  call("HSET", run, "beat", now)
  call("ZADD", of.workers, now + lease_ms, worker)
  call("SADD", of.members, worker)
end

local function keep()
  call("PEXPIRE", run, expiry_ms)
  call("PEXPIRE", tries, expiry_ms)
  for _, key in pairs(of) do
    call("PEXPIRE", key, expiry_ms)
  end
end

-- Return 1 if this worker is the feeder, or becomes it: one worker at a time adds due targets. The
-- feeder calls this every second.
local FEEDER_MS = 5000
local function feeds()
  local feeder = call("HGET", run, "feeder")
  if feeder ~= worker then
    local ends = feeder and tonumber(call("HGET", run, "feeder_until"))
    if call("HGET", run, "state") ~= "open" or (ends and ends > now) then
      return 0
    end
  end
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
  return now >= tonumber(call("HGET", run, "settled") or "0")
end

-- Return 1 if the entry was leased.
local function release(entry)
  local holder = call("HGET", of.holders, entry)
  if holder and call("HGET", of.trying, holder) == entry then
    call("HDEL", of.trying, holder)
  end
  call("HDEL", of.holders, entry)
  return call("ZREM", of.leased, entry)
end

local function take(entry)
  call("ZADD", of.leased, now + lease_ms, entry)
  call("HSET", of.holders, entry, worker)
end

-- Return the entries leased to this worker.
local function held()
  local entries = {}
  for _, entry in ipairs(call("ZRANGE", of.leased, 0, -1)) do
    if call("HGET", of.holders, entry) == worker then
      entries[#entries + 1] = entry
    end
  end
  return entries
end

-- Queue a leased entry again; this lease does not count as a try.
local function give_back(entry)
  if release(entry) == 1 then
    call("ZADD", of.pending, 0, entry)
    if call("HINCRBY", tries, entry, -1) <= 0 then
      call("HDEL", tries, entry)
    end
  end
end

local function waiting()
  return call("ZCARD", of.pending) + call("ZCARD", of.suspects)
end

local function others()
  local count = call("ZCOUNT", of.workers, now, "+inf")
  return is_alive(worker) and count - 1 or count
end

local function status(more)
  return {
    call("HGET", run, "state"), feeds(), waiting(), call("ZCARD", of.leased), others() + 1, more,
  }
end
