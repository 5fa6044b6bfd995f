-- Finds jobs of a pool that are ready and on which nobody works. See JobStore.candidates.
--
-- KEYS[1]  the prefix
-- ARGV[1]  the pool   ARGV[2]  now   ARGV[3]  how many at most
-- Returns ids, longest ready first.

local limit = tonumber(ARGV[3])
local found = {}
local offset = 0
while #found < limit do
  local some = redis.call('ZRANGE', P .. 'pool:' .. ARGV[1], '-inf', ARGV[2], 'BYSCORE', 'LIMIT', offset, 1000)
  for _, id in ipairs(some) do
    if #found < limit and not is_held(redis.call('HGET', P .. 'job:' .. id, 'until'), ARGV[2]) then
      found[#found + 1] = id
    end
  end
  if #some < 1000 then
    break
  end
  offset = offset + 1000
end
return found
