-- Frees bands. From ARGV[2] on: for each post its id, its sketch and its bands, as when claimed.

-- The bands that a record owns are given up; returns its number, or nil if nothing is there.
local function give_up(record, bands)
  local own, others = nil, {}
  for at = 1, #bands, BAND do
    local key, head = place_of(bands, at)
    local number = tonumber(call("HGET", key, head))
    if number and not own and not others[number] then
      own = read_record(number) == record and number or nil
      others[number] = not own
    end
    if number and number == own then
      call("HDEL", key, head)
      state.bands = state.bands - 1
    end
  end
  return own
end

for i = 2, #ARGV, 3 do
  local record = ARGV[i] .. ARGV[i + 1]
  local number = give_up(record, ARGV[i + 2])
  if number then
    free_number(number, #record)
    state.records = state.records - 1
  end
end
write_state()
