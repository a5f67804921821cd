-- End the run if no entry is queued or leased; the feeder calls this when it has no more targets.
-- Returns 1 if the run ends.
if is_over() or run_fields.feeder ~= worker or run_fields.state ~= "open" then
  return 0
end
if waiting() + call("ZCARD", of.leased) > 0 then
  return 0
end
call("HSET", run, "state", "ending", "closer", worker)
wake(others())
return 1
