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
local entries = {}
for i = first, #ARGV do
  table.insert(entries, ARGV[i])
end
local lost, renewed, is_renewed = {}, {}, {}
for i, holder in ipairs(call_with("HMGET", of.holders, entries)) do
  local entry = entries[i]
  if holder == worker or (sure and not holder) then
    -- A server that was killed may have lost its last writes, so the entry may be queued again.
    if not holder then
      call("ZREM", of.pending, entry)
      call("ZREM", of.suspects, entry)
    end
    table.insert(renewed, entry)
    is_renewed[entry] = true
  else
    table.insert(lost, entry)
  end
end
take(renewed)
-- Return leases whose replies the worker never received.
if back then
  local unknown = {}
  for _, entry in ipairs(held()) do
    if not is_renewed[entry] then
      table.insert(unknown, entry)
    end
  end
  give_back(unknown)
end
return status(lost)
