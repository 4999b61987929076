-- What the scripts share: how numbers and states are written.

local call, floor, min, max = redis.call, math.floor, math.min, math.max
local pack, unpack = cmsgpack.pack, cmsgpack.unpack

-- text caches numbers as they are sent: redis.call formats a number slowly.
local text = setmetatable({}, { __index = function(t, n)
  local s = string.format('%.0f', n + 0) -- not -0
  t[n] = s
  return s
end })

-- set writes a state that expires.
local function set(key, state, expireat)
  call('SET', key, state, 'PXAT', text[expireat])
end

-- A member of a log says how many units there had ever been before it and after
-- it, so that members of one time sort as they came.

-- entry returns the units ever after a member, and its own.
local function entry(member)
  local before, after = tonumber(member:sub(1, 16)), tonumber(member:sub(18))
  return after, after - before
end

-- member is the inverse of entry.
local function member(after, units)
  return string.format('%016.0f:%016.0f', after - units, after)
end
