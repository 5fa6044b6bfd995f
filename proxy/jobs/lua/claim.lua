-- Leases jobs or batches that are due. See JobStore.claim_jobs and claim_batches.
--
-- KEYS[1]  the prefix
-- ARGV[1]  "job" or "batch"
-- ARGV[2]  now        ARGV[3]  when the leases end
-- ARGV[4]  the worker ARGV[5]  how many at most
-- ARGV[6…] the indexes to look into: `due:<tier>`, or `batch_due`
-- Returns the hashes of what was leased, longest due first.

local now, lease_until, worker, limit = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local found = {}
for i = 6, #ARGV do
  local index = P .. ARGV[i]
  local due = redis.call('ZRANGE', index, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
  for j = 1, #due, 2 do
    found[#found + 1] = { id = due[j], score = tonumber(due[j + 1]), index = index }
  end
end
table.sort(found, function(one, other)
  if one.score == other.score then
    return one.id < other.id
  end
  return one.score < other.score
end)
local claimed = {}
for i = 1, math.min(limit, #found) do
  local key = P .. ARGV[1] .. ':' .. found[i].id
  redis.call('HINCRBY', key, 'token', 1)
  redis.call('HSET', key, 'worker', worker, 'until', lease_until)
  redis.call('ZADD', found[i].index, lease_until, found[i].id)
  claimed[#claimed + 1] = redis.call('HGETALL', key)
end
return claimed
