-- Estimated Jaccard similarity of two sketches, bit by bit the result of Sketch.similarity in Python.

-- Returns the number of equal values of two signatures of this shape.
local function agreeing(shape, one, at, other, there)
  local a = {byte(one, at, at + shape.size - 1)}
  local b = {byte(other, there, there + shape.size - 1)}
  local count, width = 0, shape.size / shape.values
  for first = 1, shape.size, width do
    local i = first
    while i < first + width and a[i] == b[i] do
      i = i + 1
    end
    if i == first + width then
      count = count + 1
    end
  end
  return count
end

local function similar_share(shape, ...)
  local share = agreeing(shape, ...) / shape.values
  if shape.size > shape.values then
    return share
  end
  -- Different values have the same low byte with a probability of 1/256.
  return math.max(0, (share * 256 - 1) / 255)
end

-- Returns the positions of each shape's values in a sketch, by the shape's code: of the whole text, and
-- of the text without boilerplate, with its source, title and share; nil if no boilerplate is known.
local function parts_of(sketch)
  local whole, own, at = {}, nil, 2
  local parts = whole
  while at <= #sketch do
    local code = byte(sketch, at)
    if code == OWN.code and not own then
      parts = {}
      own = {
        parts = parts,
        tag = sub(sketch, at + 2, at + 1 + OWN.tag),
        title = sub(sketch, at + 2 + OWN.tag, at + 1 + 2 * OWN.tag),
        share = byte(sketch, at + OWN.head - 1) / OWN.steps,
      }
      at = at + OWN.head
    else
      parts[code] = at + 1
      at = at + 1 + SHAPES[code].size
    end
  end
  return whole, own
end

-- Returns the similarity by the shape that shows more of it. some, others: from `parts_of`.
local function likeness(one, some, other, others)
  local best = 0
  for code, at in pairs(some) do
    if others[code] then
      best = math.max(best, similar_share(SHAPES[code], one, at, other, others[code]))
    end
  end
  return best
end

-- Returns whether enough of a text's own part, without boilerplate, is contained in the other text.
local function is_in(one, mine, other, whole, its, found)
  if not mine then
    return true
  end
  if its and its.tag == mine.tag then
    local same = its.title == mine.title or its.title == OWN.untitled or mine.title == OWN.untitled
    return same and found >= OWN.least
  end
  return next(mine.parts) == nil
    or likeness(one, mine.parts, other, whole) >= OWN.contained * mine.share
end

local function similarity(one, other)
  local whole_one, own_one = parts_of(one)
  local whole_other, own_other = parts_of(other)
  local whole = likeness(one, whole_one, other, whole_other)
  if not own_one and not own_other then
    return whole
  end
  local mine = own_one and own_one.parts or whole_one
  local its = own_other and own_other.parts or whole_other
  if next(mine) == nil and next(its) == nil then
    return whole
  end
  local own = likeness(one, mine, other, its)
  if own < whole and is_in(one, own_one, other, whole_other, own_other, own)
      and is_in(other, own_other, one, whole_one, own_one, own) then
    return whole
  end
  return own
end
