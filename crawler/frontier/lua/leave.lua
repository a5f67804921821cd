-- A worker has ended, and gives back what it holds, also by an answer that it did not wait for.
-- From ARGV[6] on: its shares (name, value).
-- Whoever is to sum up the pass stays until all others have left.
-- Returns whether it is to sum up, how many others are at work, and the visits of the pass so far.
if is_over() then
  return {0, 0, "0"}
end
for i = FIRST, #ARGV, 2 do
  call("HSET", of.shares, worker .. " " .. ARGV[i], ARGV[i + 1])
end
for _, entry in ipairs(held()) do
  give_back(entry)
end
if call("HGET", pass, "feeder") == worker then
  call("HDEL", pass, "feeder")
end
local closer, rest = call("HGET", pass, "closer"), others()
if closer == worker or (rest == 0 and not is_alive(closer)) then
  call("HSET", pass, "state", "ending", "closer", worker)
  beat()
  return {1, rest, "0"}
end
call("ZREM", of.workers, worker)
return {0, rest, call("HGET", of.counts, "visits") or "0"}
