-- Add a spider's request to the queue. From ARGV[6] on: its entry, fingerprint (empty: duplicates
-- are allowed), priority and body. Returns 1, or 0 for a duplicate.
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
