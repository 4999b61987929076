-- Keeps the searchable part of a token's settings in its metadata. It stands
-- behind metadata.lua, which defines metadata_move.
--
-- KEYS:
--   1  conf:{api:T}   hash, what is set for the token; may be absent
--   2  {api:T}:data   hash, metadata
-- What is not set is removed from the metadata. A token without any metadata gets
-- its name and its zeros, so that one who was never used can be found.

local names = { 'policy', 'owner', 'status', 'labels' }
local values = redis.call('HMGET', KEYS[1], unpack(names))
local set, gone = {}, {}
for i, name in ipairs(names) do
  if values[i] then
    set[#set + 1] = name
    set[#set + 1] = values[i]
  else
    gone[#gone + 1] = name
  end
end
if #set > 0 then
  metadata_move(KEYS[2], {})
  redis.call('HSET', KEYS[2], unpack(set))
end
if #gone > 0 then
  redis.call('HDEL', KEYS[2], unpack(gone))
end
