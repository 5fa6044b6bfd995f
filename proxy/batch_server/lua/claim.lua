-- Leases batches that somebody has to take up. See BatchStore.claim.
--
-- KEYS[1]  the prefix
-- ARGV[1]  now   ARGV[2]  when the leases end   ARGV[3]  the worker   ARGV[4]  how many at most
-- ARGV[5]  `wanted` or `ends`
-- Returns {hash of a batch, …}

local ids = redis.call('ZRANGE', P .. ARGV[5], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, tonumber(ARGV[4]))
local claimed = {}
for i, id in ipairs(ids) do
  local key = P .. 'batch:' .. id
  redis.call('HINCRBY', key, 'token', 1)
  write_batch(id, { 'worker', ARGV[3], 'until', ARGV[2] })
  claimed[i] = redis.call('HGETALL', key)
end
return claimed
