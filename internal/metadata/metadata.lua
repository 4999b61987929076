-- metadata_move(key, moves) adds to the metadata hash of a token.
--
--   key     {api:T}:data
--   moves   a list of { minute, admitted, rejected, refunded, at }: the epoch
--           minute, the units of it to add (not negative), and the unix second of
--           the last admitted use among them, which is ignored if there is none
--
-- A hash without the field token is new, or was begun by an application itself: it
-- gets every figure, 0 where there is nothing yet, and the token, for an index on
-- the hash finds and sorts only by fields that are there. Figures stay
-- below 2^53, so Lua's numbers hold them exactly; "%.0f" writes them without an
-- exponent. One HMGET and at most one HSET, as an index works once per write.
local function metadata_move(key, moves)
  local names = { 'ops', 'rejected', 'refunded', 'first', 'last', 'minute', 'rate', 'peak', 'peak_minute' }
  local old = redis.call('HMGET', key, 'token', 'percent', unpack(names))
  local fresh, was, now = not old[1], {}, {}
  for i, name in ipairs(names) do
    was[name] = tonumber(old[i + 2]) or 0
    now[name] = was[name]
  end
  table.sort(moves, function(a, b) return a[1] < b[1] end)
  for _, move in ipairs(moves) do
    local minute, admitted, at = move[1], move[2], move[5]
    now.ops = now.ops + admitted
    now.rejected = now.rejected + move[3]
    now.refunded = now.refunded + move[4]
    if admitted > 0 then
      if now.first == 0 or at < now.first then
        now.first = at
      end
      now.last = math.max(now.last, at)
      if minute > now.minute then
        now.minute, now.rate = minute, 0
      end
      if minute == now.minute then
        now.rate = now.rate + admitted
        if now.rate > now.peak then
          now.peak, now.peak_minute = now.rate, minute
        end
      end
    end
  end
  local set = {}
  if fresh then
    set = { 'token', string.match(key, '^{[^:]*:(.*)}:data$'), 'percent', old[2] or '0' }
  end
  for _, name in ipairs(names) do
    if fresh or now[name] ~= was[name] then
      set[#set + 1] = name
      set[#set + 1] = string.format('%.0f', now[name])
    end
  end
  if #set > 0 then
    redis.call('HSET', key, unpack(set))
  end
end
