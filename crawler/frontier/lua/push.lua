-- Add a spider's requests to the queue. From ARGV[6] on: entry, fingerprint (empty: duplicates are
-- allowed), priority and body of each. Returns the number of new requests.
if is_over() then
  return -1
end
local new = 0
for i = FIRST, #ARGV, 4 do
  local entry, fingerprint, priority, body = unpack(ARGV, i, i + 3)
  if fingerprint == "" or call("SADD", of.seen, fingerprint) == 1 then
    call("HSET", of.bodies, entry, body)
    call("ZADD", of.pending, -tonumber(priority), entry)
    new = new + 1
  end
end
wake(new)
return new
