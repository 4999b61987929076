-- Decides a batch of requests, each against all of its limits, all or nothing.
--
-- KEYS[1]  marks that a usage counter which is a limit has been adjusted: string
-- KEYS     then for each entry: its usage counter, its :rejected counter, and for
--          each limit, in their order, the key of its state; for a limit that is
--          the usage counter, of its adjustment
-- ARGV[1]  a msgpack array of integers, times in unix ms and widths in ms:
--            now
--            expireat  when a usage counter expires that is created here
--            skew      how long a state outlives its use
--            entries   how many follow, each of them:
--              cost    units per request; 0 is a peek
--              count   how many equal requests the entry stands for
--              flags   1 the token is blocked, 2 the units are an overdraft
--              reserve when the reservation expires; 0 when it is none. Then the
--                      last key of the entry is the reservation's
--              limits  how many follow, each of them an algorithm (+ 8 for a
--                      shadow limit), the quota in units, and parameters:
--                0 usage counter   -
--                1 counter         expireat
--                2 from the first  window
--                3 sliding window  width of a sub-window, their number
--                4 sliding log     window, min_interval, 1 to count rejected
--                5 token bucket    parts of a unit, parts refilled per ms
--                6 concurrency     lease, index of the lease's name in ARGV
-- ARGV     then the names of leases
-- returns  integers; for each entry: how many of its requests are allowed; for how
--          many of those no shadow limit objects; then, as of after the entry,
--          for each counter (0, 1) the units used, for each other limit the units
--          that remain, ms until all are back, and ms until the request fits (0 if
--          it does, -1 if it never will)
--
-- States: 1 string, units · 2 string, msgpack start and units · 3 string, msgpack
-- array of number and units of each sub-window, oldest first · 4 zset, a request
-- by its time, as <units ever before>:<and after> · 5 string, msgpack parts missing and
-- the time at which they were · 6 zset, <lease>#<slot> by the lease's end.
--
-- Counters are raised first and lowered again by what did not fit: a request that
-- is allowed, the common one, then costs one command per key. Nobody can see the
-- state in between. Nothing else is written before all limits have been asked.

local a = unpack(ARGV[1])
local now, usage_expireat, skew = a[1], a[2], a[3]
local p, k = 4, 1 -- last element of a and last key that were read
local out, o = {}, 0

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

-- keep writes the state of a limit.
local function keep(key, state, expireat)
  set(key, state, expireat + skew)
end

-- algorithms are those whose state is more than a counter. A limit is a table:
-- quota and cost in units, x, y, z its parameters. load reads its state and sets
-- free, the units that fit now; take counts units; level returns ms until all of
-- the quota is back and ms until need more units are free.
local algorithms = {}

algorithms[2] = { -- window from the first request
  params = 1,
  load = function(l)
    local state = call('GET', l.key)
    if state then
      l.start, l.used = unpack(state)
    end
    if not state or now >= l.start + l.x then
      l.start, l.used = now, 0
    end
    l.free = l.quota - l.used
  end,
  take = function(l, units)
    l.used = l.used + units
    l.free = l.free - units
    keep(l.key, pack(l.start, l.used), l.start + l.x)
  end,
  level = function(l, need)
    local till = l.start + l.x - now
    return l.used > 0 and till or 0, need > 0 and till or 0
  end,
}

algorithms[3] = { -- sliding window
  params = 2,
  load = function(l)
    local state = call('GET', l.key)
    local parts = state and unpack(state) or {}
    local n = #parts
    l.number = max(floor(now / l.x), parts[n - 1] or 0)
    l.parts, l.used = {}, 0
    for i = 1, n, 2 do
      if parts[i] > l.number - l.y then
        local m = #l.parts
        l.parts[m + 1], l.parts[m + 2] = parts[i], parts[i + 1]
        l.used = l.used + parts[i + 1]
      end
    end
    l.free = l.quota - l.used
  end,
  take = function(l, units)
    local parts, n = l.parts, #l.parts
    if n > 0 and parts[n - 1] >= l.number then
      parts[n] = parts[n] + units
    else
      parts[n + 1], parts[n + 2] = l.number, units
    end
    l.free = l.free - units
    keep(l.key, pack(parts), (l.number + l.y) * l.x)
  end,
  level = function(l, need)
    local whole, fits = 0, 0
    for i = 1, #l.parts, 2 do
      whole = (l.parts[i] + l.y) * l.x - now
      if need > 0 then
        fits = whole
        need = need - l.parts[i + 1]
      end
    end
    return whole, fits
  end,
}

algorithms[4] = { -- sliding log
  params = 3,
  load = function(l)
    local last = call('ZRANGE', l.key, -1, -1, 'WITHSCORES')
    l.at, l.sum, l.base, l.last = now, 0, 0, nil
    if last[1] then
      l.at = max(now, tonumber(last[2]))
      l.dead = text[l.at - l.x]
      local first = call('ZRANGEBYSCORE', l.key, '(' .. l.dead, '+inf', 'LIMIT', 0, 1)[1]
      if first then
        local units
        l.last, l.sum = tonumber(last[2]), entry(last[1])
        l.base, units = entry(first)
        l.base = l.base - units
      end
    end
    l.free = l.quota - (l.sum - l.base)
    if l.y > 0 and l.cost > 0 then
      l.most = l.last and now < l.last + l.y and 0 or 1
    end
  end,
  take = function(l, units)
    units = min(units, l.quota + 1)
    if l.dead then
      call('ZREMRANGEBYSCORE', l.key, '-inf', l.dead)
    end
    l.sum, l.last = l.sum + units, l.at
    call('ZADD', l.key, text[l.at], member(l.sum, units))
    l.free = l.quota - (l.sum - l.base)
    while l.free < 0 do -- what lies behind a whole quota decides nothing
      local first = entry(call('ZRANGE', l.key, 0, 0)[1])
      if first >= l.sum - l.quota then
        break
      end
      call('ZREMRANGEBYRANK', l.key, 0, 0)
      l.base = first
      l.free = l.quota - (l.sum - l.base)
    end
    call('PEXPIREAT', l.key, text[l.at + l.x + skew])
  end,
  level = function(l, need)
    if not l.last then
      return 0, 0
    end
    local whole, fits = l.last + l.x - now, 0
    if need > 0 then -- the first entry that ends with that many units
      local low, high = call('ZCOUNT', l.key, '-inf', text[l.at - l.x]), call('ZCARD', l.key) - 1
      while low < high do
        local middle = floor((low + high) / 2)
        if entry(call('ZRANGE', l.key, middle, middle)[1]) >= l.base + need then
          high = middle
        else
          low = middle + 1
        end
      end
      fits = tonumber(call('ZRANGE', l.key, low, low, 'WITHSCORES')[2]) + l.x - now
    end
    if l.y > 0 and l.cost > 0 then
      fits = max(fits, l.last + l.y - now)
    end
    return whole, fits
  end,
}

algorithms[5] = { -- token bucket
  params = 2,
  load = function(l)
    local state = call('GET', l.key)
    l.debt, l.seen = 0, now
    if state then
      local debt, seen = unpack(state)
      local elapsed = now - seen
      if elapsed <= 0 then
        l.debt, l.seen = debt, seen
      elseif elapsed < floor((debt + l.y - 1) / l.y) then
        l.debt = debt - elapsed * l.y
      end
    end
    l.free = floor((l.quota * l.x - l.debt) / l.x)
  end,
  take = function(l, units)
    l.debt = min(l.debt + min(units, 2 * l.quota) * l.x, 2 * l.quota * l.x)
    l.free = floor((l.quota * l.x - l.debt) / l.x)
    keep(l.key, pack(l.debt, l.seen), l.seen + floor((l.debt + l.y - 1) / l.y))
  end,
  level = function(l, need)
    local late, whole, fits = l.seen - now, 0, 0
    if l.debt > 0 then
      whole = floor((l.debt + l.y - 1) / l.y) + late
    end
    if need > 0 then
      fits = floor((l.debt + (l.cost - l.quota) * l.x + l.y - 1) / l.y) + late
    end
    return whole, fits
  end,
}

algorithms[6] = { -- concurrency
  params = 2,
  load = function(l)
    local till = call('ZSCORE', l.key, ARGV[l.y] .. '#1')
    l.held = till and tonumber(till) > now
    l.free = l.quota - call('ZCOUNT', l.key, '(' .. text[now], '+inf')
  end,
  take = function(l, units)
    local till, slot = text[now + l.x], ARGV[l.y] .. '#'
    call('ZREMRANGEBYSCORE', l.key, '-inf', text[now])
    if l.held then
      units = 1
      while call('ZSCORE', l.key, slot .. units + 1) do
        units = units + 1
      end
    else
      units = min(units, l.quota + 1)
      l.free = l.free - units
      l.held = true
    end
    for i = 1, units do
      call('ZADD', l.key, till, slot .. i)
    end
    local last = call('ZRANGE', l.key, -1, -1, 'WITHSCORES')[2]
    call('PEXPIREAT', l.key, text[tonumber(last) + skew])
  end,
  level = function(l, need)
    local last, fits = call('ZRANGE', l.key, -1, -1, 'WITHSCORES')[2], 0
    if need > 0 and not l.held then
      fits = call('ZRANGEBYSCORE', l.key, '(' .. text[now], '+inf', 'WITHSCORES', 'LIMIT', need - 1, 1)[2] - now
    end
    return last and max(0, last - now) or 0, fits
  end,
}

-- fitting returns how many of count requests fit into free units.
local function fitting(free, cost, count)
  if free < 0 then
    return 0
  elseif cost == 0 then
    return count
  end
  return min(count, floor(free / cost))
end

local adjusted -- are there adjustments? nil before it was asked
local function adjustment(key)
  if adjusted == nil then
    adjusted = call('EXISTS', KEYS[1]) == 1
  end
  return adjusted and tonumber(call('GET', key) or 0) or 0
end

-- Of the limits of the entry at hand; entries use the same tables.
local kinds, shadows, states, fits = {}, {}, {}, {}

for _ = 1, a[4] do
  local cost, count, flags, reserve, limits = a[p + 1], a[p + 2], a[p + 3], a[p + 4], a[p + 5]
  local usage, rejected = KEYS[k + 1], KEYS[k + 2]
  local units, fit, clear, taken = cost * count, count, count, count
  p, k = p + 5, k + 2
  local answer = o + 1
  o = o + 2
  if flags == 1 then
    fit, clear, taken = 0, 0, 0
  else
    local used = units > 0 and raise(usage, units, usage_expireat) or nil
    for i = 1, limits do -- first pass: how many does each limit allow?
      local kind, quota, key = a[p + 1], a[p + 2], KEYS[k + i]
      local shadow, state, fitted = kind >= 8, nil, count
      kind = kind % 8
      if kind == 0 then
        state = (used or tonumber(call('GET', usage) or 0)) + adjustment(key)
        p = p + 2
      elseif kind == 1 then
        state = units > 0 and raise(key, units, a[p + 3]) or tonumber(call('GET', key) or 0)
        p = p + 3
      else
        local algorithm = algorithms[kind]
        state = { key = key, quota = quota, cost = cost, x = a[p + 3], y = a[p + 4], z = a[p + 5] }
        p = p + 2 + algorithm.params
        algorithm.load(state)
        fitted = state.held and count or min(fitting(state.free, cost, count), state.most or count)
      end
      if kind <= 1 and state > quota then
        fitted = fitting(quota - state + units, cost, count)
      end
      kinds[i], shadows[i], states[i], fits[i] = kind, shadow, state, fitted
      if shadow then
        clear = min(clear, fitted)
      else
        fit = min(fit, fitted)
      end
    end
    clear = min(clear, fit)
    taken = flags == 2 and count or fit
    for i = 1, limits do -- second pass: take what all of them allow
      local kind, state, n = kinds[i], states[i], taken
      if shadows[i] and flags ~= 2 then
        n = min(n, fits[i])
      end
      local back = (count - n) * cost
      if kind <= 1 then
        if kind == 1 and back > 0 then
          lower(KEYS[k + i], state, back)
        end
        o = o + 1
        out[o] = state - back
      else
        local algorithm, objection = algorithms[kind], clear < count
        if kind == 4 and state.z == 1 then
          n = count
        end
        if n > 0 and cost > 0 then
          algorithm.take(state, n * cost)
        end
        local never = cost > state.quota and not state.held
        local whole, wait = algorithm.level(state, objection and not never and cost - state.free or 0)
        out[o + 1], out[o + 2], out[o + 3] = max(0, state.free), whole, never and -1 or wait
        o = o + 3
      end
    end
    if taken < count and units > 0 then
      lower(usage, used, (count - taken) * cost)
    end
    k = k + limits
  end
  if reserve > 0 then
    k = k + 1
    if taken > 0 then
      set(KEYS[k], pack(now, cost, reserve), reserve)
    end
  end
  out[answer], out[answer + 1] = fit, clear
  if taken < count and units > 0 then
    raise(rejected, (count - taken) * cost, usage_expireat)
  end
end
return out
