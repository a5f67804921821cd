-- Claims bands. ARGV[2]: a threshold; then for each post its id, a cluster, its sketch and its bands.
-- A post that is similar enough to an owner of its bands joins the owner's cluster; any other post
-- founds the given cluster. Returns position and cluster of each post that joined another cluster.
--
-- Without a threshold, each post is put into the given cluster.

local threshold = tonumber(ARGV[2])
-- Reserved but unused record numbers, by record size: most posts whose bands are taken need none.
local spare = {}

-- Claims the free bands of a post for a record number, before it is known whether the record will be
-- needed. All bands of an original are free, so one pass over them is sufficient.
-- Returns the number of claimed bands, and the records that own the others.
local function take(bands, number)
  local taken, owners, value = 0, {}, format("%d", number)
  local places, last = places_of(bands)
  for i = 1, last, 2 do
    local head, key = places[i], places[i + 1]
    if call("HSETNX", key, head, value) == 1 then
      taken = taken + 1
    else
      owners[tonumber(call("HGET", key, head))] = true
    end
  end
  return taken, owners
end

-- Moves the bands just claimed for a record number to the post's existing record.
local function hand_over(bands, number, own)
  local places, last = places_of(bands)
  for i = 1, last, 2 do
    local head, key = places[i], places[i + 1]
    if tonumber(call("HGET", key, head)) == number then
      call("HSET", key, head, format("%d", own))
    end
  end
end

-- Returns the post's own record if it was claimed before, and the cluster of the similar record with
-- the smallest number, which is usually the oldest.
local function look(owners, id, sketch)
  local own, first, first_number = nil, nil, math.huge
  for number in pairs(owners) do
    local other = read_record(number)
    if is_of(other, id, sketch) then
      own = {number = number, cluster = sub(other, ID + 1, HEAD)}
    elseif threshold and number < first_number and sub(other, 1, ID) ~= id
        and similarity(sketch, sub(other, HEAD + 1)) >= threshold then
      first, first_number = sub(other, ID + 1, HEAD), number
    end
  end
  return own, first
end

-- Stores the record if it is new and owns bands, or if the post's stored record has another cluster.
local function keep(record, bands, number, taken, own, cluster)
  if own and taken > 0 then
    hand_over(bands, number, own.number)
  end
  if own and own.cluster ~= cluster then
    write_record(own.number, record)
  elseif not own and taken > 0 then
    write_record(number, record)
    state.records = state.records + 1
    spare[#record] = nil
  end
  state.bands = state.bands + taken
  while state.bands > LOAD * state.buckets do
    split_next()
  end
end

-- Returns the cluster that the post is in.
local function claim(id, cluster, sketch, bands)
  local size = HEAD + #sketch
  spare[size] = spare[size] or new_number(size)
  local number = spare[size]
  local taken, owners = take(bands, number)
  local own, first = look(owners, id, sketch)
  if threshold then
    cluster = own and own.cluster or first or cluster
  end
  keep(id .. cluster .. sketch, bands, number, taken, own, cluster)
  return cluster
end

local joined = {}
for i = 3, #ARGV, 4 do
  local cluster = claim(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  if cluster ~= ARGV[i + 1] then
    joined[#joined + 1] = (i - 3) / 4
    joined[#joined + 1] = cluster
  end
end
for size, number in pairs(spare) do
  free_number(number, size)
end
write_state()
return joined
