-- Add new entries to the queue in this order; skip those that are already queued or leased.
-- From ARGV[6] on: maximum number of new entries, then name and body of each entry (body is empty
-- if the name is a target's key).
-- Returns the status, the number of new entries, and their number so far in this run.
if is_over() then
  return {"over"}
end
local new = 0
if feeds() == 1 then
  for i = FIRST + 1, #ARGV, 2 do
    local entry = ARGV[i]
    local exists = call("ZSCORE", of.leased, entry) or call("ZSCORE", of.pending, entry)
      or call("ZSCORE", of.suspects, entry)
    if not exists and new < tonumber(ARGV[FIRST]) then
      new = new + 1
      local order = call("HINCRBY", run, "fed", 1)
      local lost = tonumber(call("HGET", tries, entry) or "0")
      call("ZADD", lost > 1 and of.suspects or of.pending, order, entry)
      if ARGV[i + 1] ~= "" then
        call("HSET", of.bodies, entry, ARGV[i + 1])
      end
    end
  end
end
return status({new, tonumber(call("HGET", run, "fed"))})
