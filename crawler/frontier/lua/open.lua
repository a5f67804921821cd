-- Mark the run as prepared. From ARGV[6] on: its _id in MongoDB, its start.
if is_over() or call("HGET", run, "preparer") ~= worker then
  return 0
end
call("HSET", run, "state", "open", "run", ARGV[FIRST], "started", ARGV[FIRST + 1])
run_fields.state = "open"
feeds()
beat()
keep()
return 1
