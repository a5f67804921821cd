-- Return all leases of a worker, including those from replies that it did not receive, and leave the
-- run. The worker that has to sum up the run stays a member until all others have left.
-- From ARGV[6] on: the worker's counts (name, value).
-- Returns whether the worker has to sum up the run, the number of other workers, and the number of
-- visits of the run so far.
if is_over() then
  return {0, 0, "0"}
end
for i = FIRST, #ARGV, 2 do
  call("HSET", of.shares, worker .. " " .. ARGV[i], ARGV[i + 1])
end
give_back(held())
if call("HGET", run, "feeder") == worker then
  call("HDEL", run, "feeder")
end
local closer, rest = call("HGET", run, "closer"), others()
if closer == worker or (rest == 0 and not is_alive(closer)) then
  call("HSET", run, "state", "ending", "closer", worker)
  beat()
  return {1, rest, "0"}
end
call("ZREM", of.workers, worker)
return {0, rest, call("HGET", of.counts, "visits") or "0"}
