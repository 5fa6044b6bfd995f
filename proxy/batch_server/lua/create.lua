-- Keeps a new batch. See BatchStore.create_batch.
--
-- KEYS[1]  the prefix
-- ARGV[1]  the id   ARGV[2]  the owner   ARGV[3]  when it was made   ARGV[4]  when it is deleted
-- ARGV[5], …  field and text of its hash, one after the other

local id = ARGV[1]
if redis.call('EXISTS', P .. 'batch:' .. id) == 1 then
  return 0
end
local flat = {}
for i = 5, #ARGV do
  flat[#flat + 1] = ARGV[i]
end
write_batch(id, flat)
redis.call('ZADD', P .. 'batches:' .. ARGV[2], ARGV[3], id)
redis.call('ZADD', P .. 'purge', ARGV[4], 'batch:' .. id)
return 1
