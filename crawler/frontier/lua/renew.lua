-- The leases of a worker go on. From ARGV[6] on: "sure" where its last word is younger than a lease,
-- "back" where Redis was away since; how many shares follow, and these (name, value); then what it
-- holds. Returns how the pass stands, and which leases are lost.
if is_over() then
  return {"over"}
end
if is_stale() then
  return standing({})
end
local sure, back = ARGV[FIRST] == "1", ARGV[FIRST + 1] == "1"
beat()
keep()
local first = FIRST + 3 + tonumber(ARGV[FIRST + 2]) * 2
for i = FIRST + 3, first - 1, 2 do
  call("HSET", of.shares, worker .. " " .. ARGV[i], ARGV[i + 1])
end
local lost, said = {}, {}
for i = first, #ARGV do
  local entry = ARGV[i]
  local holder = call("HGET", of.holders, entry)
  if holder == worker or (sure and not holder) then
    -- A server that was killed may have forgotten its last steps.
    call("ZREM", of.pending, entry)
    call("ZREM", of.suspects, entry)
    take(entry)
    said[entry] = true
  else
    lost[#lost + 1] = entry
  end
end
-- Leased by an answer that never came.
if back then
  for _, entry in ipairs(held()) do
    if not said[entry] then
      give_back(entry)
    end
  end
end
return standing(lost)
