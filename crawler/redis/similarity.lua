-- Estimated Jaccard of two sketches, to the last bit as Sketch.similarity has it in Python.

-- How many values of two signatures of this shape are equal.
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

local function alike(shape, ...)
  local share = agreeing(shape, ...) / shape.values
  if shape.size > shape.values then
    return share
  end
  -- Two different values agree in their low byte once in 256.
  return math.max(0, (share * 256 - 1) / 255)
end

-- Where the values of each shape begin in a sketch, by the shape's code.
local function parts_of(sketch)
  local parts, at = {}, 2
  while at <= #sketch do
    local code = byte(sketch, at)
    parts[code] = at + 1
    at = at + 1 + SHAPES[code].size
  end
  return parts
end

local function similarity(one, other)
  local there, best = parts_of(other), 0
  for code, at in pairs(parts_of(one)) do
    if there[code] then
      best = math.max(best, alike(SHAPES[code], one, at, other, there[code]))
    end
  end
  return best
end
