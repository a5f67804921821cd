-- Complete entries, and lease new ones.
-- From ARGV[6] on: number of entries to lease; maximum number of leases of an entry (not used here:
-- the worker dead-letters an entry that exceeds it); then for each completed entry its name, the
-- number of its counts, and these (name, value).
-- Returns the status and the leases: name, body, number of leases so far.
if is_over() then
  return {"over"}
end
if is_stale() then
  return status({})
end
beat()
local want, most = tonumber(ARGV[FIRST]), tonumber(ARGV[FIRST + 1])

local i = FIRST + 2
while i <= #ARGV do
  local entry, last = ARGV[i], i + 1 + tonumber(ARGV[i + 1]) * 2
  local removed = release(entry) + call("ZREM", of.pending, entry) + call("ZREM", of.suspects, entry)
  -- Otherwise another worker has completed and counted the entry.
  if removed > 0 then
    call("HDEL", tries, entry)
    call("HDEL", of.bodies, entry)
    for at = i + 2, last, 2 do
      call("HINCRBYFLOAT", of.counts, ARGV[at], ARGV[at + 1])
    end
  end
  i = last + 1
end

if want == 0 or not is_settled() or call("HGET", run, "state") ~= "open" then
  return status({})
end

for _, entry in ipairs(call("ZRANGEBYSCORE", of.leased, "-inf", now, "LIMIT", 0, 200)) do
  release(entry)
  call("HINCRBY", run, "expired", 1)
  if tonumber(call("HGET", tries, entry) or "0") > 1 then
    call("ZADD", of.suspects, now, entry)
  else
    call("ZADD", of.pending, 0, entry)
  end
end

local leases = {}
-- The worker rejects longer bodies, so there is no need to send them whole.
local MAX_BYTES = 256000
local function lease(entry)
  take(entry)
  leases[#leases + 1] = entry
  leases[#leases + 1] = string.sub(call("HGET", of.bodies, entry) or "", 1, MAX_BYTES + 1)
  leases[#leases + 1] = call("HINCRBY", tries, entry, 1)
end
-- Lease at most one suspect per worker: a poison page would otherwise fail the other suspects, too.
if call("HEXISTS", of.trying, worker) == 0 then
  local suspect = call("ZPOPMIN", of.suspects)[1]
  if suspect then
    call("HSET", of.trying, worker, suspect)
    lease(suspect)
  end
end
-- Share the last entries among all workers.
local share = math.ceil(call("ZCARD", of.pending) / (others() + 1))
local popped = call("ZPOPMIN", of.pending, math.min(want, share))
for at = 1, #popped, 2 do
  lease(popped[at])
end
return status(leases)
