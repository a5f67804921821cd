-- New entries wait, in this order; those that wait already, or are leased, are left as they are.
-- From ARGV[6] on: how many may be new, then for each entry its name and its body (empty where the
-- name says it all). Returns how the pass stands, how many were new, and how many were so far.
if is_over() then
  return {"over"}
end
local new = 0
if feeds() == 1 then
  for i = FIRST + 1, #ARGV, 2 do
    local entry = ARGV[i]
    local known = call("ZSCORE", of.leased, entry) or call("ZSCORE", of.pending, entry)
      or call("ZSCORE", of.suspects, entry)
    if not known and new < tonumber(ARGV[FIRST]) then
      new = new + 1
      local order = call("HINCRBY", pass, "fed", 1)
      local lost = tonumber(call("HGET", tries, entry) or "0")
      call("ZADD", lost > 1 and of.suspects or of.pending, order, entry)
      if ARGV[i + 1] ~= "" then
        call("HSET", of.bodies, entry, ARGV[i + 1])
      end
    end
  end
end
return standing({new, tonumber(call("HGET", pass, "fed"))})
