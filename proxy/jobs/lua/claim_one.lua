-- Leases one live job, due or not. See JobStore.claim_job.
--
-- KEYS[1]  the prefix
-- ARGV[1]  the job's id   ARGV[2]  now   ARGV[3]  when the lease ends   ARGV[4]  the worker
-- Returns the job's hash, empty if it has ended, is gone, or somebody works on it.

local job = load_job(ARGV[1])
if not job or not LIVE[job.state] or is_held(job['until'], ARGV[2]) then
  return {}
end
local key = P .. 'job:' .. job.id
redis.call('HINCRBY', key, 'token', 1)
redis.call('HSET', key, 'worker', ARGV[4], 'until', ARGV[3])
redis.call('ZADD', P .. 'due:' .. job.tier, later(job.due, ARGV[3]), job.id)
return redis.call('HGETALL', key)
