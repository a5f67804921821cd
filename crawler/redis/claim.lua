-- Claims bands. ARGV[2]: a threshold; then for each post its id, its sketch and its bands.
-- Returns for each copy its position and, in one string, the id of its match and how similar that
-- is. The other posts are originals.

local threshold = tonumber(ARGV[2])
-- Numbers that were not needed, by size of record; most posts of a hot band need none.
local spare = {}

-- Takes the free ones of a post's bands for a record, before it is known whether there will be one:
-- of an original all are free, and this is its only look at them.
-- Returns how many were taken, and the records that own the others.
local function take(bands, number)
  local taken, owners, value = 0, {}, format("%d", number)
  for at = 1, #bands, BAND do
    local key, head = place_of(bands, at)
    if call("HSETNX", key, head, value) == 1 then
      taken = taken + 1
    else
      owners[tonumber(call("HGET", key, head))] = true
    end
  end
  return taken, owners
end

-- Hands what a record has just taken over to the post's own one.
local function hand_over(bands, number, own)
  for at = 1, #bands, BAND do
    local key, head = place_of(bands, at)
    if tonumber(call("HGET", key, head)) == number then
      call("HSET", key, head, format("%d", own))
    end
  end
end

-- The owner that a post is a copy of: of all that are similar enough the one with the smallest
-- number, most often the oldest. So copies that come at once name one post, and not each other,
-- of which none may be in MongoDB yet.
-- Returns its id, its similarity and, if the post was claimed before, the number of its own record.
local function look(owners, record)
  local id, first_id, similar, first_number, own = sub(record, 1, ID), nil, nil, math.huge, nil
  for number in pairs(owners) do
    local other = read_record(number)
    if other == record then
      own = number
    elseif sub(other, 1, ID) ~= id then
      local found = similarity(record, other)
      if found >= threshold and number < first_number then
        first_id, similar, first_number = sub(other, 1, ID), found, number
      end
    end
  end
  return first_id, similar, own
end

local function keep(record, bands, number, taken, own)
  if own and taken > 0 then
    hand_over(bands, number, own)
  elseif taken > 0 then
    write_record(number, record)
    state.records = state.records + 1
    spare[#record] = nil
  end
  state.bands = state.bands + taken
  while state.bands > LOAD * state.buckets do
    split_next()
  end
end

local function claim(record, bands)
  spare[#record] = spare[#record] or new_number(#record)
  local number = spare[#record]
  local taken, owners = take(bands, number)
  local first_id, similar, own = look(owners, record)
  keep(record, bands, number, taken, own)
  return first_id and first_id .. format("%.17g", similar)
end

local copies = {}
for i = 3, #ARGV, 3 do
  local match = claim(ARGV[i] .. ARGV[i + 1], ARGV[i + 2])
  if match then
    copies[#copies + 1] = (i - 3) / 3
    copies[#copies + 1] = match
  end
end
for size, number in pairs(spare) do
  free_number(number, size)
end
write_state()
return copies
