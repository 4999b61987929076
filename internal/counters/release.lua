-- Releases the slots that a lease holds of a limit of concurrency.
--
-- KEYS[1]  the limit's state: zset, <lease>#<slot> by the lease's end
-- ARGV[1]  the lease
-- returns  how many slots it held

local slots = 0
while redis.call('ZREM', KEYS[1], ARGV[1] .. '#' .. slots + 1) == 1 do
  slots = slots + 1
end
return slots
