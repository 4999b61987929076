-- series_put(key, span, minute, admitted, rejected, refunded) writes the bucket
-- of one minute into a ring.
--
--   key      series:{api:T}:<resource>, a hash
--   span     buckets in the ring, minutes; also how long an idle series lives
--   minute   epoch minute
--   admitted, rejected, refunded   units in that minute so far, absolute
--
-- A bucket of the same minute only grows; one of an earlier minute is replaced;
-- one of a later minute stays, since the ring has come round already.
local function series_put(key, span, minute, admitted, rejected, refunded)
  local field = string.format('%.0f', minute % span)
  local old = redis.call('HGET', key, field)
  if old then
    local m, a, r, f = string.match(old, '^(%d+):(%d+):(%d+):(%d+)$')
    if m and tonumber(m) > minute then
      return
    end
    if m and tonumber(m) == minute then
      admitted = math.max(admitted, tonumber(a))
      rejected = math.max(rejected, tonumber(r))
      refunded = math.max(refunded, tonumber(f))
    end
  end
  local new = string.format('%.0f:%.0f:%.0f:%.0f', minute, admitted, rejected, refunded)
  if new ~= old then
    redis.call('HSET', key, field, new)
  end
  redis.call('EXPIRE', key, span * 60)
end
