-- What the scripts share: the bands and the records of one index.
-- Python puts SHAPES (size and number of values by code), OWN (how the part of a sketch that is
-- besides boilerplate is stored and compared), BUCKET_BITS and LAYOUT before it. ARGV[1] is
-- the scheme that the index has to be of; empty: any.
--
-- KEYS[1]      hash    the state: layout, scheme, bands, buckets, records, chunks; for each size of
--                      records `next:<size>`, the number after the last one, and `freed:<size>`
-- <prefix>b:N  hash    a bucket: the head of a band -> the number of the record that owns it
-- <prefix>r:N  string  a chunk of records of one size; a record is a post's id, its cluster and its
--                      stored sketch
-- <prefix>f:S  list    numbers of freed records of size S
--
-- All names are made of KEYS[1] and carry its hash tag: a cluster has them in one place.
--
-- A band comes in 8 bytes: its head of 32 bits, then its last 32 bits. Its bucket tells the last
-- BUCKET_BITS, so that the head alone is stored.

local call, byte, sub, floor = redis.call, string.byte, string.sub, math.floor
local format, read_numbers = string.format, struct.unpack

-- Linear hashing: a bucket is split in WAYS whenever buckets hold more than LOAD bands in the mean, so
-- they stay small over any number of posts. Just before its split a bucket holds four times LOAD, and
-- hardly ever more than 128, which every server keeps as a packed list. In halves, each band would be
-- moved half as often again: splits took a third of a claim's time.
local LOAD, WAYS = 20, 4
local FIRST_BUCKETS = 2 ^ BUCKET_BITS
-- A signature of 128 bytes makes a record of 150; 54 of them fill 8 kB, as allocators cut memory.
local CHUNK = 54
local ID, CLUSTER, BAND = 8, 12, 8
local HEAD = ID + CLUSTER

local prefix = sub(KEYS[1], 1, -#"state" - 1)
local state = {bands = 0, buckets = FIRST_BUCKETS, records = 0, chunks = 0}
local scheme = nil

local function read_state()
  local stored = call("HGETALL", KEYS[1])
  for i = 1, #stored, 2 do
    if stored[i] == "scheme" then
      scheme = stored[i + 1]
    else
      state[stored[i]] = tonumber(stored[i + 1])
    end
  end
end

local function write_state()
  local stored = {}
  for field, value in pairs(state) do
    stored[#stored + 1] = field
    stored[#stored + 1] = value
  end
  call("HSET", KEYS[1], unpack(stored))
end

read_state()
if state.layout ~= LAYOUT or not scheme or (ARGV[1] ~= "" and ARGV[1] ~= scheme) then
  return redis.error_reply("LOST there is no index of this scheme")
end

-- Buckets -----------------------------------------------------------------------------------------

-- How many buckets there were when the present round of splits began. They are split in turn: parts
-- of bucket N become buckets N + level, N + 2 * level and N + 3 * level.
local level = FIRST_BUCKETS
while level * WAYS <= state.buckets do
  level = level * WAYS
end

-- How many buckets this round has split.
local function splits()
  return (state.buckets - level) / (WAYS - 1)
end

-- Numbers are made text by `format`: it takes half the time of Lua's own way.
local function bucket_key(number)
  return format("%sb:%d", prefix, number)
end

-- How to read so many bands at once.
local formats = {}

-- The heads of bands and the keys of their buckets, in turn, and how many that are in all.
local function places_of(bands)
  local count = #bands / BAND
  formats[count] = formats[count] or ">" .. string.rep("c4I4", count)
  local places, split, next_level = {read_numbers(formats[count], bands)}, splits(), level * WAYS
  for i = 2, 2 * count, 2 do
    local number = places[i] % level
    if number < split then
      number = places[i] % next_level
    end
    places[i] = bucket_key(number)
  end
  return places, 2 * count
end

-- Parts a bucket's fields and values by the bits of the heads that this round of splits looks at.
local function parted(stored)
  local parts, sizes = {{}, {}, {}, {}}, {0, 0, 0, 0}
  local weight, at = level / FIRST_BUCKETS, 4
  while weight >= 256 do
    weight, at = weight / 256, at - 1
  end
  for i = 1, #stored, 2 do
    local number = floor(byte(stored[i], at) / weight) % WAYS + 1
    local part, size = parts[number], sizes[number]
    part[size + 1], part[size + 2] = stored[i], stored[i + 1]
    sizes[number] = size + 2
  end
  return parts
end

local function split_next()
  local number = splits()
  local stored = call("HGETALL", bucket_key(number))
  if #stored > 0 then
    call("DEL", bucket_key(number))
  end
  for i, part in ipairs(parted(stored)) do
    if #part > 0 then
      call("HSET", bucket_key(number + (i - 1) * level), unpack(part))
    end
  end
  state.buckets = state.buckets + WAYS - 1
  if state.buckets == level * WAYS then
    level = state.buckets
  end
end

-- Records -----------------------------------------------------------------------------------------

local function chunk_key(number)
  return format("%sr:%d", prefix, floor(number / CHUNK))
end

-- A number for a record of this size: a freed one, the next in its chunk, the first in a new one.
local function new_number(size)
  local freed, next_one = "freed:" .. size, "next:" .. size
  if (state[freed] or 0) > 0 then
    state[freed] = state[freed] - 1
    return tonumber(call("LPOP", prefix .. "f:" .. size))
  end
  local number = state[next_one] or 0
  if number % CHUNK == 0 then
    number = state.chunks * CHUNK
    state.chunks = state.chunks + 1
    -- Written to its end at once, a chunk has the length that it keeps, and no room to grow.
    call("SETRANGE", chunk_key(number), CHUNK * size - 1, "\0")
  end
  state[next_one] = number + 1
  return number
end

local function free_number(number, size)
  local freed = "freed:" .. size
  state[freed] = (state[freed] or 0) + 1
  call("LPUSH", prefix .. "f:" .. size, format("%d", number))
end

local function write_record(number, record)
  call("SETRANGE", chunk_key(number), number % CHUNK * #record, record)
end

-- A chunk's length tells the size of its records.
local function read_record(number)
  local key = chunk_key(number)
  local size = call("STRLEN", key) / CHUNK
  local at = number % CHUNK * size
  return call("GETRANGE", key, at, at + size - 1)
end

-- Whether a record is of this post with this text, whatever its cluster.
local function is_of(record, id, sketch)
  return sub(record, 1, ID) == id and sub(record, HEAD + 1) == sketch
end
