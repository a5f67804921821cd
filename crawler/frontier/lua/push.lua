-- A request that a spider made. From ARGV[6] on: its entry, fingerprint (empty: it may come again),
-- priority and body. Returns 1, or 0 where it was seen before.
if is_over() then
  return -1
end
local entry, fingerprint, priority, body = unpack(ARGV, FIRST)
if fingerprint ~= "" and call("SADD", of.seen, fingerprint) == 0 then
  return 0
end
call("HSET", of.bodies, entry, body)
call("ZADD", of.pending, -tonumber(priority), entry)
return 1
