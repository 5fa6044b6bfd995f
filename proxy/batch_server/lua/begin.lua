-- Begins a file. See BatchStore.create_file.
--
-- KEYS[1]  the prefix
-- ARGV[1]  the id of the file   ARGV[2]  when it is deleted if it is not completed   ARGV[3]  when it expires

local key = P .. 'file:' .. ARGV[1]
if redis.call('EXISTS', key) == 0 then
  redis.call('HSET', key, 'is_complete', '0', 'expires', ARGV[3])
  redis.call('ZADD', P .. 'purge', ARGV[2], 'file:' .. ARGV[1])
end
return 1
