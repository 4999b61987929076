-- Sets a watermark to now and returns the one before, if that is earlier.
--
-- KEYS: 1  string, unix seconds
-- Returns { before, now }, unix seconds; before is 0 when there was none.
local now = tonumber(redis.call('TIME')[1])
local before = tonumber(redis.call('GET', KEYS[1])) or 0
if now > before then
  redis.call('SET', KEYS[1], string.format('%.0f', now))
end
return { before, now }
