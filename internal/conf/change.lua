-- Makes a change to a token's settings together with its events.
--
-- KEYS[1]  conf:{api:T}    hash: settings, and the number of changes in "version"
-- KEYS[2]  events:{api:T}  list: events that the tracker has not forwarded yet
-- ARGV[1]  version that the change was made from; "0" when there are no settings
-- ARGV[2]  channel on which enforcers hear of it
-- ARGV[3]  the token's ID
-- ARGV[4]  number of events, which follow
-- then     number of fields, and for each its name and its value; "" removes it
--
-- Returns 1, or 0 when the settings are of another version: nothing was done then.
if (redis.call('HGET', KEYS[1], 'version') or '0') ~= ARGV[1] then
  return 0
end
local at = 5
for _ = 1, tonumber(ARGV[4]) do
  redis.call('RPUSH', KEYS[2], ARGV[at])
  at = at + 1
end
local fields = tonumber(ARGV[at])
for _ = 1, fields do
  if ARGV[at + 2] == '' then
    redis.call('HDEL', KEYS[1], ARGV[at + 1])
  else
    redis.call('HSET', KEYS[1], ARGV[at + 1], ARGV[at + 2])
  end
  at = at + 2
end
redis.call('HINCRBY', KEYS[1], 'version', 1)
redis.call('PUBLISH', ARGV[2], ARGV[3])
return 1
