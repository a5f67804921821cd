-- Delete all keys of a run that is summed up.
if is_over() then
  return 0
end
for _, name in ipairs(call("SMEMBERS", of.members)) do
  call("DEL", of.holders .. ":" .. name)
end
call("DEL", run)
for _, key in pairs(of) do
  call("DEL", key)
end
return 1
