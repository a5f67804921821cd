-- Pause requests to a host, unless it is already paused for longer.
-- KEYS: pause of the host. ARGV: worker, ms
if redis.call("PTTL", KEYS[1]) < tonumber(ARGV[2]) then
  redis.call("SET", KEYS[1], ARGV[1], "PX", ARGV[2])
end
