-- What a worker says again and again: what is done, and how much it would like to lease.
-- From ARGV[6] on: entries wanted; after so many leases an entry is leased once more, to be buried;
-- then for each entry that is done its name, how many counts follow, and these (name, value).
-- Returns how the pass stands and the leases: name, body, number of leases so far.
if is_over() then
  return {"over"}
end
if is_stale() then
  return standing({})
end
beat()
local want, most = tonumber(ARGV[FIRST]), tonumber(ARGV[FIRST + 1])

local i = FIRST + 2
while i <= #ARGV do
  local entry, last = ARGV[i], i + 1 + tonumber(ARGV[i + 1]) * 2
  local there = let_go(entry) + call("ZREM", of.pending, entry) + call("ZREM", of.suspects, entry)
  -- Else somebody else has done it, and counted it.
  if there > 0 then
    call("HDEL", tries, entry)
    call("HDEL", of.bodies, entry)
    for at = i + 2, last, 2 do
      call("HINCRBYFLOAT", of.counts, ARGV[at], ARGV[at + 1])
    end
  end
  i = last + 1
end

if want == 0 or not is_settled() or call("HGET", pass, "state") ~= "open" then
  return standing({})
end

for _, entry in ipairs(call("ZRANGEBYSCORE", of.leased, "-inf", now, "LIMIT", 0, 200)) do
  let_go(entry)
  call("HINCRBY", pass, "expired", 1)
  if tonumber(call("HGET", tries, entry) or "0") > 1 then
    call("ZADD", of.suspects, now, entry)
  else
    call("ZADD", of.pending, 0, entry)
  end
end

local leases = {}
-- A longer one is refused by whoever leases it, in a few bytes as well as in all.
local MAX_BYTES = 256000
local function lease(entry)
  take(entry)
  leases[#leases + 1] = entry
  leases[#leases + 1] = string.sub(call("HGET", of.bodies, entry) or "", 1, MAX_BYTES + 1)
  leases[#leases + 1] = call("HINCRBY", tries, entry, 1)
end
-- Were two tried at once, the one that kills its worker would drag the other down.
if call("HEXISTS", of.trying, worker) == 0 then
  local suspect = call("ZPOPMIN", of.suspects)[1]
  if suspect then
    call("HSET", of.trying, worker, suspect)
    lease(suspect)
  end
end
-- The last entries are for all.
local share = math.ceil(call("ZCARD", of.pending) / (others() + 1))
local found = call("ZPOPMIN", of.pending, math.min(want, share))
for at = 1, #found, 2 do
  lease(found[at])
end
return standing(leases)
