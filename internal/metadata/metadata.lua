-- metadata_move(key, moves) adds to the metadata hash of a token.
--
--   key     {api:T}:data
--   moves   a list of { minute, admitted, rejected, refunded, at }: the epoch
--           minute, the units of it to add (not negative), and the unix second of
--           the last admitted use among them, which is ignored if there is none
--
-- A hash without the field token is new, or was begun by an application itself: it
-- gets every figure, 0 where there is nothing yet, and the token, for an index on
-- the hash finds and sorts only by fields that are there. Figures stay below 2^53:
-- Lua's numbers hold them exactly, and Redis writes such numbers without exponent.
-- One HMGET and at most one HSET, as an index works once per write.
local metadata_names = { 'ops', 'rejected', 'refunded', 'first', 'last', 'minute', 'rate', 'peak', 'peak_minute' }

local function metadata_by_minute(a, b)
  return a[1] < b[1]
end

local function metadata_move(key, moves)
  local old = redis.call('HMGET', key, 'ops', 'rejected', 'refunded', 'first', 'last',
    'minute', 'rate', 'peak', 'peak_minute', 'token', 'percent')
  local was = {}
  for i = 1, 9 do
    was[i] = tonumber(old[i]) or 0
  end
  local ops, rejected, refunded, first, last, latest, rate, peak, peak_minute = unpack(was)
  if #moves > 1 then
    table.sort(moves, metadata_by_minute)
  end
  for i = 1, #moves do
    local move = moves[i]
    local minute, admitted, at = move[1], move[2], move[5]
    ops = ops + admitted
    rejected = rejected + move[3]
    refunded = refunded + move[4]
    if admitted > 0 then
      if first == 0 or at < first then
        first = at
      end
      if at > last then
        last = at
      end
      if minute > latest then
        latest, rate = minute, 0
      end
      if minute == latest then
        rate = rate + admitted
        if rate > peak then
          peak, peak_minute = rate, minute
        end
      end
    end
  end
  local now = { ops, rejected, refunded, first, last, latest, rate, peak, peak_minute }
  local fresh, set, n = not old[10], {}, 0
  if fresh then
    set, n = { 'token', string.match(key, '^{[^:]*:(.*)}:data$'), 'percent', old[11] or '0' }, 4
  end
  for i = 1, 9 do
    if fresh or now[i] ~= was[i] then
      set[n + 1], set[n + 2] = metadata_names[i], now[i]
      n = n + 2
    end
  end
  if n > 0 then
    redis.call('HSET', key, unpack(set))
  end
end
