-- Says that a tracker lives, and returns who does.
--
-- KEYS: 1  the trackers' list, a sorted set: member → alive until, unix ms
-- ARGV: 1  this tracker   2  ms for which it counts as alive
-- Returns the members that are alive, this one included.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('ZRANGE', KEYS[1], 0, -1)
