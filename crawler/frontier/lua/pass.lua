-- What every script of a shared pass begins with.
-- KEYS[1]: `{freshet:DATABASE:SPIDER}:`, with which all keys begin
-- ARGV: id of the pass, name of this worker, milliseconds of a lease, milliseconds until keys expire,
--       number of this message among the worker's
--
-- pass      hash   id, state (preparing, open, ending), run, started, preparer, closer, feeder,
--                  feeder_until, fed (entries so far), expired (leases so far), beat, settled
-- tries     hash   entry -> leases so far; outlives a pass that was cut off
-- of one pass, behind its id:
-- pending   zset   entries that wait, in their order
-- suspects  zset   entries whose lease has expired twice: each worker tries one at a time
-- leased    zset   entry -> when its lease expires; holders: entry -> worker
-- trying    hash   worker -> the suspect that it tries
-- bodies    hash   entry -> request, where the entry's name does not say it
-- workers   zset   worker -> when it counts as dead; members: all that ever took part
-- messages  hash   worker -> number of its last message
-- counts    hash   sums over all entries that are done; shares: worker's own sums
-- seen      set    fingerprints of requests; closed: hosts that get no more requests
-- asked     hash   host -> requests, where their number has a cap
local call = redis.call
local base, worker = KEYS[1], ARGV[2]
local lease_ms, expiry_ms = tonumber(ARGV[3]), tonumber(ARGV[4])
local FIRST = 6
local time = call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local pass, tries = base .. "pass", base .. "tries"
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
  return call("HGET", pass, "id") ~= ARGV[1]
end

local function is_alive(name)
  local dies = name and call("ZSCORE", of.workers, name)
  return dies and tonumber(dies) > now
end

-- Where nobody has said a word for long the server slept, not the workers: until all have said what
-- they hold, no lease expires and none is given.
local GRACE_MS = 3000
local function beat()
  local last = tonumber(call("HGET", pass, "beat") or now)
  if now - last > lease_ms / 2 then
    call("HSET", pass, "settled", now + GRACE_MS)
  end
  call("HSET", pass, "beat", now)
  call("ZADD", of.workers, now + lease_ms, worker)
  call("SADD", of.members, worker)
end

local function keep()
  call("PEXPIRE", pass, expiry_ms)
  call("PEXPIRE", tries, expiry_ms)
  for _, key in pairs(of) do
    call("PEXPIRE", key, expiry_ms)
  end
end

-- One worker at a time finds out what is due; 1 if it is this one. It says something every second.
local FEEDER_MS = 5000
local function feeds()
  local feeder = call("HGET", pass, "feeder")
  if feeder ~= worker then
    local ends = feeder and tonumber(call("HGET", pass, "feeder_until"))
    if call("HGET", pass, "state") ~= "open" or (ends and ends > now) then
      return 0
    end
  end
  call("HSET", pass, "feeder", worker, "feeder_until", now + math.min(lease_ms, FEEDER_MS))
  return 1
end

-- Whether a message arrives after a later one of its worker, who has given up waiting for its answer.
local function is_stale()
  local last = tonumber(call("HGET", of.messages, worker) or "0")
  call("HSET", of.messages, worker, math.max(last, tonumber(ARGV[FIRST - 1])))
  return tonumber(ARGV[FIRST - 1]) < last
end

local function is_settled()
  return now >= tonumber(call("HGET", pass, "settled") or "0")
end

local function let_go(entry)
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

-- What this worker holds.
local function held()
  local found = {}
  for _, entry in ipairs(call("ZRANGE", of.leased, 0, -1)) do
    if call("HGET", of.holders, entry) == worker then
      found[#found + 1] = entry
    end
  end
  return found
end

-- As if it had never been leased.
local function give_back(entry)
  if let_go(entry) == 1 then
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

local function standing(more)
  local said = {
    call("HGET", pass, "state"), feeds(), waiting(), call("ZCARD", of.leased), others() + 1,
  }
  said[6] = more
  return said
end
