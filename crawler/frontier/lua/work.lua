-- Complete entries, and lease new ones.
-- From ARGV[6] on: number of entries to lease; number of names of counts, and these; then for each
-- completed entry its name and its counts, in the order of the names.
-- Returns the status and the leases: name, body, number of leases so far; then, if there are none, the
-- ms after which the worker should try again.
if is_over() then
  return {"over"}
end
if is_stale() then
  return status({})
end
beat()
local want, first = tonumber(ARGV[FIRST]), FIRST + 2 + tonumber(ARGV[FIRST + 1])

-- Counts are added up here, so that a batch needs one command for each count.
local completed, sums, row = {}, {}, first - FIRST - 1
for i = first, #ARGV, row do
  table.insert(completed, ARGV[i])
end
local is_done = {}
for i, holder in ipairs(release(completed)) do
  local entry, at = completed[i], first + (i - 1) * row
  local is_queued = not holder
    and call("ZREM", of.pending, entry) + call("ZREM", of.suspects, entry) > 0
  -- Otherwise another worker has completed and counted the entry.
  if (holder or is_queued) and not is_done[entry] then
    is_done[entry] = true
    for n = 1, row - 1 do
      local name = ARGV[FIRST + 1 + n]
      sums[name] = (sums[name] or 0) + tonumber(ARGV[at + n])
    end
  end
end
local finished = {}
for entry in pairs(is_done) do
  table.insert(finished, entry)
end
call_with("HDEL", tries, finished)
call_with("HDEL", of.bodies, finished)
for name, sum in pairs(sums) do
  if sum ~= 0 then
    call("HINCRBYFLOAT", of.counts, name, string.format("%.17g", sum))
  end
end

if want == 0 or not is_settled() or run_fields.state ~= "open" then
  return status({}, want > 0)
end

local MAX_EXPIRED = 200
local expired = call("ZRANGEBYSCORE", of.leased, "-inf", now, "LIMIT", 0, MAX_EXPIRED)
if #expired > 0 then
  release(expired)
  call("HINCRBY", run, "expired", #expired)
  local queued, suspected = {}, {}
  for i, lost in ipairs(call_with("HMGET", tries, expired)) do
    local is_suspect = tonumber(lost or "0") > 1
    local rows = is_suspect and suspected or queued
    table.insert(rows, is_suspect and now or 0)
    table.insert(rows, expired[i])
  end
  call_with("ZADD", of.pending, queued)
  call_with("ZADD", of.suspects, suspected)
end

local entries = {}
-- Lease at most one suspect per worker: a poison page would otherwise fail the other suspects, too.
if call("HEXISTS", of.trying, worker) == 0 then
  local suspect = call("ZPOPMIN", of.suspects)[1]
  if suspect then
    call("HSET", of.trying, worker, suspect)
    table.insert(entries, suspect)
  end
end
-- Share the last entries among all workers.
local pending = call("ZCARD", of.pending)
local share = math.ceil(pending / (others() + 1))
local popped = call("ZPOPMIN", of.pending, math.min(want, share))
for at = 1, #popped, 2 do
  table.insert(entries, popped[at])
end
take(entries)
local bodies, counts = call_with("HMGET", of.bodies, entries), call_with("HMGET", tries, entries)
-- The worker rejects longer bodies, so there is no need to send them whole.
local MAX_BYTES = 256000
local leases, tried = {}, {}
for i, entry in ipairs(entries) do
  local count = tonumber(counts[i] or "0") + 1
  table.insert(leases, entry)
  table.insert(leases, string.sub(bodies[i] or "", 1, MAX_BYTES + 1))
  table.insert(leases, count)
  table.insert(tried, entry)
  table.insert(tried, count)
end
call_with("HSET", tries, tried)
-- A token is lost if the worker that received it crashes, so workers replace it while entries wait.
if #expired > 0 then
  wake(waiting())
elseif #entries > 0 and pending > #popped / 2 then
  wake(1)
elseif #entries > 0 and waiting() == 0 then
  call("DEL", of.wake)
end
return status(leases, #entries == 0)
