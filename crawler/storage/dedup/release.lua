-- Frees bands. From ARGV[2] on: for each post its id, any cluster, and its sketch and bands as they were
-- claimed.

-- Frees the bands that a post owns; returns its record's number, or nil if it has none.
local function give_up(id, sketch, bands)
  local own, others = nil, {}
  local places, last = places_of(bands)
  for i = 1, last, 2 do
    local head, key = places[i], places[i + 1]
    local number = tonumber(call("HGET", key, head))
    if number and not own and not others[number] then
      own = is_of(read_record(number), id, sketch) and number or nil
      others[number] = not own
    end
    if number and number == own then
      call("HDEL", key, head)
      state.bands = state.bands - 1
    end
  end
  return own
end

for i = 2, #ARGV, 4 do
  local number = give_up(ARGV[i], ARGV[i + 2], ARGV[i + 3])
  if number then
    free_number(number, HEAD + #ARGV[i + 2])
    state.records = state.records - 1
  end
end
write_state()
