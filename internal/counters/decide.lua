-- Decides a batch of requests, each against all of its limits, all or nothing.
--
-- KEYS     for each entry: its usage counter, its :rejected counter, then the key
--          of each limit that has one of its own, in the order of the limits
-- ARGV[1]  a msgpack array of integers:
--            expireat  unix ms at which a usage counter expires that is created here
--            entries   how many follow, each of them:
--              cost    units per request; 0 is a peek
--              count   how many equal requests the entry stands for
--              limits  how many follow, or -1 when the token is blocked; each:
--                quota     units
--                expireat  unix ms at which the limit's key expires; 0 when the
--                          limit's count is the usage counter itself
-- returns  integers; for each entry: how many of its requests are allowed, then
--          for each limit the units used, after this entry
--
-- Counters are raised first and lowered again by what did not fit: a request that
-- is allowed, the common one, then costs one command per key. Nobody can see the
-- state in between.

local call = redis.call
local a = cmsgpack.unpack(ARGV[1])
local usage_expireat = a[1]
local p, k = 2, 0 -- last element of a and last key that were read
local out, o = {}, 0

-- text caches numbers as they are sent: redis.call formats a number slowly.
local text = setmetatable({}, { __index = function(t, n)
  local s = string.format('%.0f', n)
  t[n] = s
  return s
end })

-- raise adds units to a counter and returns its value.
local function raise(key, units, expireat)
  local value = call('INCRBY', key, text[units])
  if value == units then
    call('PEXPIREAT', key, text[expireat])
  end
  return value
end

-- lower takes units back that raise has added.
local function lower(key, value, units)
  if value == units then
    call('DEL', key)
  else
    call('DECRBY', key, text[units])
  end
end

for _ = 1, a[2] do
  local cost, count, limits = a[p + 1], a[p + 2], a[p + 3]
  local usage, rejected = KEYS[k + 1], KEYS[k + 2]
  local units = cost * count
  local fit = count
  p, k = p + 3, k + 2
  if limits < 0 then
    fit = 0
    o = o + 1
    out[o] = 0
  elseif units == 0 then
    o = o + 1
    out[o] = count
    for i = 1, limits do
      local key = usage
      if a[p + 2] > 0 then
        k = k + 1
        key = KEYS[k]
      end
      out[o + i] = tonumber(call('GET', key) or 0)
      p = p + 2
    end
    o = o + limits
  else
    local used = raise(usage, units, usage_expireat)
    local first = k
    o = o + 1
    for i = 1, limits do
      local value, expireat = used, a[p + 2]
      if expireat > 0 then
        k = k + 1
        value = raise(KEYS[k], units, expireat)
      end
      out[o + i] = value
      local over = value - a[p + 1]
      if over > 0 then
        fit = math.min(fit, math.floor((units - over) / cost))
      end
      p = p + 2
    end
    if fit < count then
      if fit < 0 then
        fit = 0
      end
      local back = (count - fit) * cost
      lower(usage, used, back)
      local key = first
      for i = 1, limits do
        if a[p - 2 * (limits - i)] > 0 then
          key = key + 1
          lower(KEYS[key], out[o + i], back)
        end
        out[o + i] = out[o + i] - back
      end
    end
    out[o] = fit
    o = o + limits
  end
  if fit < count and units > 0 then
    raise(rejected, (count - fit) * cost, usage_expireat)
  end
end
return out
