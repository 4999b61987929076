-- Adjusts what limits have counted of a token: a refund, a charge, a grant or a
-- reset. It never revives a key that has expired.
--
-- KEYS[1]  the mark that usage counters which are limits have been adjusted
-- KEYS[2]  the usage counter of the time that the adjustment is about
-- KEYS[3]  its :refunded counter
-- KEYS[4]  what makes it happen once: the reservation when kind is 5, else a key of
--          the adjustment's name
-- KEYS     then the keys of the limits, as in decide.lua, of that time
-- ARGV[1]  a msgpack array of integers, times in unix ms:
--            now
--            expireat  when the usage counter expires
--            skew      how long a state outlives its use
--            at        the time that the adjustment is about
--            till      when the adjustment of that minute's usage counter expires
--            kind      1 refund, 2 charge, 3 grant, 4 reset, 5 settle
--            units     of a settlement the actual cost
--            once      until when the name is remembered; 0 when there is none
--            limits    how many follow, each as in decide.lua
-- ARGV[2]  the channel on which it is announced that units are free again
-- ARGV[3]  the token
-- returns  one integer: 1 when it was made, 0 when the usage counter is gone, 2 when it was made
--          before, 3 when there is no such reservation

local a = unpack(ARGV[1])
local now, usage_expireat, skew, at, till = a[1], a[2], a[3], a[4], a[5]
local kind, units, once, limits = a[6], a[7], a[8], a[9]
local refund, charge, grant, reset, settle = 1, 2, 3, 4, 5

if kind == settle then
  local reservation = call('GET', KEYS[4])
  if not reservation then
    return { 3 }
  end
  local reserved, estimate, expireat, settled = unpack(reservation)
  if now >= expireat then
    return { 3 }
  elseif settled then
    return { 2 }
  end
  set(KEYS[4], pack(reserved, estimate, expireat, units), expireat)
  kind = units < estimate and refund or charge
  units = math.abs(units - estimate)
  if units == 0 then
    return { 1 }
  end
elseif once > 0 and now < tonumber(call('GET', KEYS[4]) or 0) then
  return { 2 }
end
if (kind == refund or kind == charge) and call('EXISTS', KEYS[2]) == 0 then
  return { 0 }
end
if once > 0 then
  set(KEYS[4], text[once], once)
end
local delta = kind == refund and -units or units

-- change adds units to a count that must not fall below 0.
local function change(count)
  return count + max(delta, -max(0, count))
end

-- forget takes units off counts, the oldest first.
local function forget(count)
  local n = min(units, max(0, count))
  units = units - n
  return count - n
end

-- Each takes a limit's key, its quota and its parameters.
local adjust = {}

adjust[0] = function(key)
  local usage, adjusted = tonumber(call('GET', KEYS[2]) or 0), tonumber(call('GET', key) or 0)
  local used = usage + adjusted
  if kind == charge or till <= now then
    return
  elseif kind == reset then
    used = 0
  elseif kind == grant then
    used = used - units
  else
    used = change(used)
  end
  set(key, text[used - usage], till)
  set(KEYS[1], '', max(till, (floor(now / 60000) + 1) * 60000 + skew))
end

adjust[1] = function(key, _, expireat)
  if kind == reset then
    call('DEL', key)
  elseif kind == grant then
    call('INCRBY', key, text[-units])
    call('PEXPIREAT', key, text[expireat])
  else
    local used = tonumber(call('GET', key) or nil)
    if used then
      call('INCRBY', key, text[change(used) - used])
    end
  end
end

adjust[2] = function(key, _, window)
  if kind == reset then
    return call('DEL', key)
  end
  local state = call('GET', key)
  local start, used = now, 0
  if state then
    start, used = unpack(state)
    if now >= start + window then
      start, used, state = now, 0, nil
    end
  end
  if kind == grant then
    set(key, pack(start, used - units), start + window + skew)
  elseif state and at >= start then
    set(key, pack(start, change(used)), start + window + skew)
  end
end

adjust[3] = function(key, _, width, number)
  local state = kind ~= reset and call('GET', key)
  if not state then
    return call('DEL', key)
  end
  local parts = unpack(state)
  local n = #parts
  local latest = max(floor(now / width), parts[n - 1])
  for i = 1, n, 2 do
    if parts[i] <= latest - number then
      -- it has ended
    elseif kind == grant then
      parts[i + 1] = forget(parts[i + 1])
    elseif parts[i] == floor(at / width) then
      parts[i + 1] = change(parts[i + 1])
    end
  end
  set(key, pack(parts), (parts[n - 1] + number) * width + skew)
end

adjust[4] = function(key, quota, window)
  if kind == reset then
    return call('DEL', key)
  end
  local last = call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  local dead = text[max(now, tonumber(last or 0)) - window]
  if kind == grant then -- an entry that shrinks keeps its place in the sum
    local live = call('ZRANGEBYSCORE', key, '(' .. dead, '+inf', 'WITHSCORES')
    for i = 1, #live, 2 do
      local sum, n = entry(live[i])
      n = forget(n)
      call('ZREM', key, live[i])
      if n > 0 or i == #live - 1 then -- the last one knows when it was
        call('ZADD', key, live[i + 1], member(sum, n))
        return
      end
    end
    return
  end
  local same = at > tonumber(dead) and call('ZREVRANGEBYSCORE', key, text[at], text[at], 'LIMIT', 0, 1)[1]
  if not same then
    return
  end
  local _, n = entry(same)
  local moved = min(change(n), quota + 1) - n
  local later = call('ZRANGEBYSCORE', key, text[at], '+inf', 'WITHSCORES')
  for i = 1, #later, 2 do -- it and all that came after move in the sum
    local sum, m = entry(later[i])
    if later[i] == same then
      m = m + moved
    elseif later[i + 1] == text[at] and later[i] < same then
      sum = nil
    end
    if sum then
      call('ZREM', key, later[i])
      later[i] = member(sum + moved, m)
    else
      later[i] = false
    end
  end
  for i = 1, #later, 2 do
    if later[i] then
      call('ZADD', key, later[i + 1], later[i])
    end
  end
end

adjust[5] = function(key, quota, unit, rate)
  if kind == reset then
    return call('DEL', key)
  end
  local state, debt, seen = call('GET', key), 0, now
  if state then
    debt, seen = unpack(state)
    local elapsed = now - seen
    if elapsed > 0 then
      debt, seen = elapsed >= floor((debt + rate - 1) / rate) and 0 or debt - elapsed * rate, now
    end
  end
  if debt == 0 and kind ~= charge then
    return
  end
  local moved = kind == grant and -units or delta
  debt = min(max(0, debt + max(-2 * quota, min(moved, 2 * quota)) * unit), 2 * quota * unit)
  set(key, pack(debt, seen), seen + floor((debt + rate - 1) / rate) + skew)
end

adjust[6] = function(key)
  if kind == reset then
    call('DEL', key)
  end
end

local all, params = units, { [0] = 0, 1, 1, 2, 3, 2, 2 }
local p = 9
for i = 1, limits do
  local algorithm = a[p + 1] % 8
  units = all -- each limit forgets as many
  adjust[algorithm](KEYS[4 + i], a[p + 2], a[p + 3], a[p + 4])
  p = p + 2 + params[algorithm]
end
if kind == refund then
  if call('INCRBY', KEYS[3], text[all]) == all then
    call('PEXPIREAT', KEYS[3], text[usage_expireat])
  end
elseif kind == charge then
  call('INCRBY', KEYS[2], text[all])
end
if kind ~= charge then
  call('PUBLISH', ARGV[2], ARGV[3])
end
return { 1 }
