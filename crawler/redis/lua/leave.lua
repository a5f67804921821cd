-- A worker has ended. From ARGV[5] on: how many shares follow, and these (name, value); then the
-- entries that it gives back. Whoever is to sum up the pass stays until all others have left.
-- Returns whether it is to sum up, how many others are at work, and the visits of the pass so far.
if is_over() then
  return {0, 0, "0"}
end
local first = FIRST + 1 + tonumber(ARGV[FIRST]) * 2
for i = FIRST + 1, first - 1, 2 do
  call("HSET", of.shares, worker .. " " .. ARGV[i], ARGV[i + 1])
end
for i = first, #ARGV do
  if call("HGET", of.holders, ARGV[i]) == worker then
    give_back(ARGV[i])
  end
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
