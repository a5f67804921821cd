-- Nothing more will be fed: the pass ends if nothing waits and nothing is leased. 1 if it ends.
if is_over() or call("HGET", pass, "feeder") ~= worker or call("HGET", pass, "state") ~= "open" then
  return 0
end
if waiting() + call("ZCARD", of.leased) > 0 then
  return 0
end
call("HSET", pass, "state", "ending", "closer", worker)
return 1
