-- The common part of the scripts: bands and records of one index.
-- Python prepends SHAPES (size and number of values by code), OWN (how the part of a sketch without
-- boilerplate is stored and compared), BUCKET_BITS and LAYOUT. ARGV[1] is the scheme that the index
-- must have; empty: any.
--
-- KEYS[1]      hash    the state: layout, scheme, bands, buckets, records, chunks; for each size of
--                      records `next:<size>`, the number after the last one, and `freed:<size>`
-- <prefix>b:N  hash    a bucket: head of a band -> number of the record that owns the band
-- <prefix>r:N  string  a chunk of records of one size; a record has a post's id, cluster and encoded
--                      sketch
-- <prefix>f:S  list    numbers of freed records of size S
--
-- All keys share the hash tag of KEYS[1], so that a Redis cluster stores them on one node.
--
-- A band is passed in 8 bytes: its head of 32 bits, then its last 32 bits. The last BUCKET_BITS select
-- its bucket, so only the head is stored.

local call, byte, sub, floor = redis.call, string.byte, string.sub, math.floor
local format, read_numbers = string.format, struct.unpack

-- Linear hashing: a bucket is split into WAYS when the mean load exceeds LOAD bands, so buckets stay
-- small for any number of posts. Just before its split a bucket has four times LOAD bands, and hardly
-- ever more than 128, up to which every server stores a hash as a compact list. Splitting into halves
-- would move each band 1.5 times as often; splits then took a third of a claim's time.
local LOAD, WAYS = 20, 4
local FIRST_BUCKETS = 2 ^ BUCKET_BITS
-- With a signature of 128 bytes, a record has 150 bytes; 54 records fill an allocation of 8 kB.
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

-- Number of buckets when the current round of splits began. They are split in order: the parts of
-- bucket N become buckets N + level, N + 2 * level and N + 3 * level.
local level = FIRST_BUCKETS
while level * WAYS <= state.buckets do
  level = level * WAYS
end

-- Number of buckets split in this round.
local function splits()
  return (state.buckets - level) / (WAYS - 1)
end

-- Numbers are converted to text by `format`, which takes half the time of Lua's implicit conversion.
local function bucket_key(number)
  return format("%sb:%d", prefix, number)
end

-- Returns the format string that unpacks this number of bands.
local formats = {}

-- Returns heads of bands and keys of their buckets, alternating, and the length of that list.
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

-- Distributes a bucket's fields and values by the bits of the heads that this round of splits uses.
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

-- Returns a number for a record of this size: a freed one, the next in its chunk, or the first of a new
-- chunk.
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
    -- Write the chunk's last byte first: it gets its final length, without spare capacity.
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

-- The size of a chunk's records follows from its length.
local function read_record(number)
  local key = chunk_key(number)
  local size = call("STRLEN", key) / CHUNK
  local at = number % CHUNK * size
  return call("GETRANGE", key, at, at + size - 1)
end

-- Returns whether a record is of this post with this text, in any cluster.
local function is_of(record, id, sketch)
  return sub(record, 1, ID) == id and sub(record, HEAD + 1) == sketch
end
