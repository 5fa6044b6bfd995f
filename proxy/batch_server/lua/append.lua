-- Names the key of a chunk. See BatchStore.append_chunk.
--
-- KEYS[1]  the prefix
-- ARGV[1]  the id of the file   ARGV[2]  the number of the chunk   ARGV[3]  the last part of its key
-- Returns {"gone"}, {"complete"}, or {"ok", the last part of the key that this one replaces or ""}

local is_complete = redis.call('HGET', P .. 'file:' .. ARGV[1], 'is_complete')
if not is_complete then
  return { 'gone' }
end
if is_complete == '1' then
  return { 'complete' }
end
local key = P .. 'chunks:' .. ARGV[1]
local before = redis.call('HGET', key, ARGV[2])
redis.call('HSET', key, ARGV[2], ARGV[3])
return { 'ok', before or '' }
