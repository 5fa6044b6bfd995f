-- Leases ended jobs whose notice is due. See JobStore.claim_notices.
--
-- KEYS[1]  the prefix
-- ARGV[1]  now        ARGV[2]  when the leases end
-- ARGV[3]  the worker ARGV[4]  how many at most
-- ARGV[5…] webhooks that are left alone
-- Returns the hashes of what was leased, longest due first.

local now, lease_until, worker, limit = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local busy, found = {}, {}
for i = 5, #ARGV do
  busy[ARGV[i]] = true
end
for _, webhook in ipairs(redis.call('SMEMBERS', P .. 'notices')) do
  local index = P .. 'notice:' .. webhook
  if redis.call('EXISTS', index) == 0 then
    redis.call('SREM', P .. 'notices', webhook)
  elseif not busy[webhook] then
    local due = redis.call('ZRANGE', index, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
    for j = 1, #due, 2 do
      found[#found + 1] = { id = due[j], score = tonumber(due[j + 1]), index = index }
    end
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
  local key = P .. 'job:' .. found[i].id
  redis.call('HINCRBY', key, 'token', 1)
  redis.call('HSET', key, 'worker', worker, 'until', lease_until)
  redis.call('ZADD', found[i].index, lease_until, found[i].id)
  claimed[#claimed + 1] = redis.call('HGETALL', key)
end
return claimed
