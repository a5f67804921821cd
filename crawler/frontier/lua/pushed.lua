-- Read the next values of a key of pushed URLs in the order of scrapy-redis: a list from its left,
-- a set in any order, a sorted set from its highest score. Longer values are removed.
-- KEYS[1]: the key. ARGV: maximum number of values, maximum bytes of a value, bytes of a beginning
-- Returns the type of the key, the values, and the beginnings of the longer ones.
local key, longest = KEYS[1], tonumber(ARGV[2])
local kind = redis.call("TYPE", key)["ok"]
local commands = {
  list = {{"LRANGE", key, 0, ARGV[1] - 1}, {"LREM", key, 1}},
  set = {{"SRANDMEMBER", key, ARGV[1]}, {"SREM", key}},
  zset = {{"ZREVRANGE", key, 0, ARGV[1] - 1}, {"ZREM", key}},
}
local values, beginnings = {}, {}
if commands[kind] then
  local read, remove = unpack(commands[kind])
  for _, value in ipairs(redis.call(unpack(read))) do
    if #value <= longest then
      table.insert(values, value)
    else
      table.insert(beginnings, string.sub(value, 1, ARGV[3]))
      local command = {unpack(remove)}
      table.insert(command, value)
      redis.call(unpack(command))
    end
  end
end
return {kind, values, beginnings}
