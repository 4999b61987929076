-- metadata_move(key, admitted, rejected, refunded, first, last) adds to the
-- metadata hash of a token.
--
--   key       {api:T}:data
--   admitted, rejected, refunded   units to add, not negative
--   first, last   unix seconds of the first and last admitted use among them;
--                 ignored when admitted is 0
--
-- Figures stay below 2^53, so Lua's numbers hold them exactly; "%.0f" writes
-- them without an exponent. One HMGET and at most one HSET: an index on the hash
-- works once per call.
local function metadata_move(key, admitted, rejected, refunded, first, last)
  if admitted + rejected + refunded == 0 then
    return
  end
  local old = redis.call('HMGET', key, 'ops', 'rejected', 'refunded', 'first', 'last')
  local set = {}
  local function put(name, value)
    set[#set + 1] = name
    set[#set + 1] = string.format('%.0f', value)
  end
  if admitted > 0 then
    put('ops', (tonumber(old[1]) or 0) + admitted)
    local was_first, was_last = tonumber(old[4]), tonumber(old[5])
    if not was_first or first < was_first then
      put('first', first)
    end
    if not was_last or last > was_last then
      put('last', last)
    end
  end
  if rejected > 0 then
    put('rejected', (tonumber(old[2]) or 0) + rejected)
  end
  if refunded > 0 then
    put('refunded', (tonumber(old[3]) or 0) + refunded)
  end
  redis.call('HSET', key, unpack(set))
end
