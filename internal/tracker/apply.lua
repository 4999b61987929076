-- Accounts for what the counters of some cells hold, exactly once. It stands
-- behind metadata.lua and series.lua, which define metadata_move and series_put.
--
-- KEYS, for each token:
--   applied:{api:T}   hash, what is accounted for already (see below)
--   {api:T}:data      hash, metadata
--   then for each of its cells:
--     {api:T}:<minute>[:<resource>]          string, admitted units
--     {api:T}:<minute>:<resource>:rejected   string, units
--     {api:T}:<minute>:<resource>:refunded   string, units
--     series:{api:T}:<resource>              hash, series
--     and F foreign counters                 string, units
-- ARGV:
--   1  grace, seconds: how long counters outlive their minute
--   2  span of a series, minutes
--   then for each token: the number of its cells, and for each of them
--     the epoch minute, its field in applied, and F (0 unless the resource is the
--     default one), followed by the F fields of its foreign counters
-- Returns for each token one array: five integers per cell
--     admitted, rejected, refunded (absolute), last (unix seconds), moved (units);
--     admitted is -1 where there is no counter and never was one in grace;
--   or, where the token's keys hold something else than they should, a string
--   that says so; nothing of that token was changed then.
--
-- The fields of applied, pruned when their minute is out of grace:
--   <minute>[:<resource>]   admitted:rejected:refunded:last
--   <0..59>@<minute>        total:value:expiry of a foreign counter: units in that
--                           minute so far, the counter's value when last seen, and
--                           when it was going to expire, unix ms (0 for never)
-- A minute out of grace is never touched, for its marks are gone.

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local now = tonumber(time[1])
local grace, span = tonumber(ARGV[1]), tonumber(ARGV[2])
-- Marks are kept a minute longer than counters live, and a foreign counter lives
-- up to 59 s past its minute whatever the grace is.
local keep = math.max(grace, 60) + 60

-- foreign_move returns the mark of a foreign counter and the units to account for.
--
-- A counter whose first hits fall into the first second of its minute expires in
-- the last second of it, 59 s later, and may begin anew at once: the same key in
-- the same minute, yet another counter. It is recognised by a value that has not
-- grown although the key is going to expire later.
local function foreign_move(key, value, mark, minute)
  local total, seen, expiry = string.match(mark or '0:0:0', '^(%d+):(%d+):(%d+)$')
  total, seen, expiry = tonumber(total), tonumber(seen), tonumber(expiry)
  local ttl = redis.call('PTTL', key)
  local expires = ttl > 0 and now_ms + ttl or 0
  local delta = math.max(value - seen, 0)
  if delta == 0 and expiry > 0 and expiry <= now_ms and expiry < (minute + 1) * 60000 and expires > expiry then
    delta, seen = value, 0
  end
  if delta == 0 then
    return mark, 0
  end
  return string.format('%.0f:%.0f:%.0f', total + delta, math.max(value, seen), expires), delta
end

local function reply(result, total, r, f, last, moved)
  local n = #result
  result[n + 1], result[n + 2], result[n + 3], result[n + 4], result[n + 5] = total, r, f, last, moved
end

-- mark4 reads the mark of a cell.
local function mark4(mark)
  if not mark then
    return 0, 0, 0, 0
  end
  local a, r, f, last = string.match(mark, '^(%d+):(%d+):(%d+):(%d+)$')
  return tonumber(a), tonumber(r), tonumber(f), tonumber(last)
end

-- apply accounts for one token's cells; k and v are the places in KEYS and ARGV
-- before its own.
local function apply(k, v, n)
  local applied, data = KEYS[k + 1], KEYS[k + 2]
  k = k + 2
  local cells, fields, counters = {}, {}, {}
  for i = 1, n do
    local cell = { minute = tonumber(ARGV[v + 1]), series = KEYS[k + 4], at = #fields, from = #counters, foreign = tonumber(ARGV[v + 3]) }
    fields[#fields + 1] = ARGV[v + 2]
    for j = 1, 3 do
      counters[#counters + 1] = KEYS[k + j]
    end
    for j = 1, cell.foreign do
      fields[#fields + 1] = ARGV[v + 3 + j]
      counters[#counters + 1] = KEYS[k + 4 + j]
    end
    k = k + 4 + cell.foreign
    v = v + 3 + cell.foreign
    cells[i] = cell
  end
  -- Whatever can fail comes before the first write.
  local marks = redis.call('HMGET', applied, unpack(fields))
  local values = redis.call('MGET', unpack(counters))

  local result, set, fresh, put, moves = {}, {}, false, {}, {}
  for i = 1, n do
    local cell = cells[i]
    local minute, at, from = cell.minute, cell.at, cell.from
    local ends = minute * 60 + 60
    local known = marks[at + 1]
    local a0, r0, f0, l0 = mark4(known)
    local a = math.max(tonumber(values[from + 1]) or 0, a0)
    local r = math.max(tonumber(values[from + 2]) or 0, r0)
    local f = math.max(tonumber(values[from + 3]) or 0, f0)
    local da, total, exists = a - a0, a, known or values[from + 1] or values[from + 2] or values[from + 3]
    if ends + grace <= now - 60 then
      exists = false
    else
      for j = 1, cell.foreign do
        local mark, value = marks[at + 1 + j], tonumber(values[from + 3 + j])
        if value and value >= 0 and math.abs(minute - math.floor(now / 60)) < 30 then
          local moved, delta = foreign_move(counters[from + 3 + j], value, mark, minute)
          if delta > 0 then
            set[#set + 1] = fields[at + 1 + j]
            set[#set + 1] = moved
            fresh = fresh or not mark
            mark, da = moved, da + delta
          end
          exists = true
        end
        if mark then
          total = total + tonumber(string.match(mark, '^%d+'))
          exists = true
        end
      end
    end
    if not exists then
      reply(result, -1, 0, 0, 0, 0)
    else
      local moved = da + (r - r0) + (f - f0)
      local used = l0
      if da > 0 then
        used = math.max(l0, math.min(now, ends - 1))
      end
      if moved > 0 then
        set[#set + 1] = fields[at + 1]
        set[#set + 1] = string.format('%.0f:%.0f:%.0f:%.0f', a, r, f, used)
        fresh = fresh or not known
        put[#put + 1] = { cell.series, minute, total, r, f }
        moves[#moves + 1] = { minute, da, r - r0, f - f0, used }
      end
      reply(result, total, r, f, used, moved)
    end
  end
  if #set == 0 then
    return result
  end

  metadata_move(data, moves) -- reads before it writes
  redis.call('HSET', applied, unpack(set))
  if fresh then -- about once a minute for each resource
    local gone = {}
    for _, field in ipairs(redis.call('HKEYS', applied)) do
      local minute = tonumber(string.match(field, '@(%d+)$') or string.match(field, '^(%d+)'))
      if minute and minute * 60 + 60 + keep <= now then
        gone[#gone + 1] = field
        if #gone == 1000 then
          break
        end
      end
    end
    if #gone > 0 then
      redis.call('HDEL', applied, unpack(gone))
    end
    -- Counters of the youngest minute end with it and their grace.
    redis.call('EXPIRE', applied, string.format('%.0f', keep + 180))
  end
  for _, p in ipairs(put) do
    series_put(p[1], span, p[2], p[3], p[4], p[5])
  end
  return result
end

local results, k, v = {}, 0, 2
while v < #ARGV do
  local n = tonumber(ARGV[v + 1])
  local ok, result = pcall(apply, k, v + 1, n)
  if not ok then
    result = tostring(type(result) == 'table' and result.err or result)
  end
  results[#results + 1] = result
  k, v = k + 2, v + 1
  for _ = 1, n do
    local foreign = tonumber(ARGV[v + 3])
    k, v = k + 4 + foreign, v + 3 + foreign
  end
end
return results
