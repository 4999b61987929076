-- series_put(key, span, minute, admitted, rejected, refunded) writes the bucket
-- of one minute into a ring.
--
--   key      series:{api:T}:<resource>, a hash
--   span     buckets in the ring, minutes; also how long an idle series lives
--   minute   epoch minute
--   admitted, rejected, refunded   units in that minute so far, absolute
--
-- A bucket of the same minute only grows; one of an earlier minute is replaced;
-- one of a later minute stays, since the ring has come round already. A key of
-- another type is replaced: the account must not fail for the series' sake.
local function series_put(key, span, minute, admitted, rejected, refunded)
  local field = string.format('%.0f', minute % span)
  local old = redis.pcall('HGET', key, field)
  if type(old) == 'table' then
    redis.call('DEL', key)
    old = false
  end
  local m, a, r, f
  if old then
    m, a, r, f = string.match(old, '^(%d+):(%d+):(%d+):(%d+)$')
    m = tonumber(m)
  end
  if m and m > minute then
    return
  end
  if m == minute then
    admitted = math.max(admitted, tonumber(a))
    rejected = math.max(rejected, tonumber(r))
    refunded = math.max(refunded, tonumber(f))
  end
  local new = string.format('%.0f:%.0f:%.0f:%.0f', minute, admitted, rejected, refunded)
  if new ~= old then
    redis.call('HSET', key, field, new)
  end
  if m ~= minute then -- once a minute
    redis.call('EXPIRE', key, string.format('%.0f', span * 60))
  end
end
