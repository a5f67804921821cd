-- Renew the leases of a worker. From ARGV[6] on: 1 if its last renewal is more recent than the
-- duration of a lease; 1 if Redis was unavailable since then; the number of the worker's counts, and
-- these (name, value); then the entries it holds. Returns the status and the lost leases.
if is_over() then
  return {"over"}
end
if is_stale() then
  return status({})
end
local sure, back = ARGV[FIRST] == "1", ARGV[FIRST + 1] == "1"
beat()
keep()
local first = FIRST + 3 + tonumber(ARGV[FIRST + 2]) * 2
for i = FIRST + 3, first - 1, 2 do
  call("HSET", of.shares, worker .. " " .. ARGV[i], ARGV[i + 1])
end
local lost, is_renewed = {}, {}
for i = first, #ARGV do
  local entry = ARGV[i]
  local holder = call("HGET", of.holders, entry)
  if holder == worker or (sure and not holder) then
    -- A server that was killed may have lost its last writes, so the entry may be queued again.
    call("ZREM", of.pending, entry)
    call("ZREM", of.suspects, entry)
    take(entry)
    is_renewed[entry] = true
  else
    lost[#lost + 1] = entry
  end
end
-- Return leases whose replies the worker never received.
if back then
  for _, entry in ipairs(held()) do
    if not is_renewed[entry] then
      give_back(entry)
    end
  end
end
return status(lost)
