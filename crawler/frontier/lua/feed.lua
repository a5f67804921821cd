-- Add new entries to the queue in this order; skip those that are queued, leased or postponed.
-- From ARGV[6] on: maximum number of new entries, then name and body of each entry (body is empty
-- if the name is a target's key).
-- Returns the status, the number of new entries, and their number so far in this run without those
-- that were not due.
if is_over() then
  return {"over"}
end
local new = 0
if feeds() == 1 then
  local entries, bodies, places = {}, {}, {[of.pending] = {}, [of.suspects] = {}}
  for i = FIRST + 1, #ARGV, 2 do
    table.insert(entries, ARGV[i])
  end
  local holders = call_with("HMGET", of.holders, entries)
  local lost = call_with("HMGET", tries, entries)
  local has_suspects = call("EXISTS", of.suspects) == 1
  local has_postponed = call("EXISTS", of.postponed) == 1
  local fed = tonumber(call("HGET", run, "fed"))
  for i, entry in ipairs(entries) do
    local exists = holders[i] or call("ZSCORE", of.pending, entry)
      or (has_suspects and call("ZSCORE", of.suspects, entry))
      or (has_postponed and call("SISMEMBER", of.postponed, entry) == 1)
    if not exists and new < tonumber(ARGV[FIRST]) then
      new = new + 1
      local place = places[tonumber(lost[i] or "0") > 1 and of.suspects or of.pending]
      table.insert(place, fed + new)
      table.insert(place, entry)
      local body = ARGV[FIRST + i * 2]
      if body ~= "" then
        table.insert(bodies, entry)
        table.insert(bodies, body)
      end
    end
  end
  for key, scores in pairs(places) do
    call_with("ZADD", key, scores)
  end
  call_with("HSET", of.bodies, bodies)
  if new > 0 then
    call("HINCRBY", run, "fed", new)
    wake(new)
  end
end
local fed, not_due = tonumber(call("HGET", run, "fed")), call("HGET", of.counts, "not_due")
return status({new, fed - tonumber(not_due or "0")})
