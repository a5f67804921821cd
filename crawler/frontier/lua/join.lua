-- Take part in a spider's pass, or begin one. ARGV[1]: id of the pass if a new one begins.
-- Returns what to do, the id of the pass, its run and when it started.
local found = call("HGET", pass, "id")
if not found then
  call("HSET", pass, "id", ARGV[1], "state", "preparing", "preparer", worker, "fed", 0, "expired", 0)
  beat()
  keep()
  return {"prepare", ARGV[1], "", ""}
end
of = keys_of(found)
local known = call("HMGET", pass, "state", "preparer", "run", "started")
local state, preparer = known[1], known[2]
local function join(what)
  beat()
  return {what, found, known[3] or "", known[4] or ""}
end
-- Those who began it may all have died, at whatever they were.
if others() == 0 or (state == "preparing" and (preparer == worker or not is_alive(preparer))) then
  call("HSET", pass, "state", "preparing", "preparer", worker)
  call("HDEL", pass, "feeder", "closer")
  return join("prepare")
end
if state == "ending" then
  return {"wait", found, "", ""}
end
return join(state == "open" and "join" or "wait")
