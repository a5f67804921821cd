-- Join a spider's run, or begin one. ARGV[1]: id for a new run.
-- Returns the next step ("prepare", "join" or "wait"), the id of the run, its _id in MongoDB and its
-- start.
local id = run_fields.id
if not id then
  call("HSET", run, "id", ARGV[1], "state", "preparing", "preparer", worker, "fed", 0, "expired", 0)
  beat()
  keep()
  return {"prepare", ARGV[1], "", ""}
end
of = keys_of(id)
local fields = call("HMGET", run, "state", "preparer", "run", "started")
local state, preparer = fields[1], fields[2]
local function join(step)
  beat()
  return {step, id, fields[3] or "", fields[4] or ""}
end
-- Prepare the run again if all of its workers have crashed, in any state, or its preparer has.
if others() == 0 or (state == "preparing" and (preparer == worker or not is_alive(preparer))) then
  call("HSET", run, "state", "preparing", "preparer", worker)
  call("HDEL", run, "feeder", "closer")
  return join("prepare")
end
if state == "ending" then
  return {"wait", id, "", ""}
end
return join(state == "open" and "join" or "wait")
