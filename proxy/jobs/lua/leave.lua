-- Notes that one of a job's callers waits for it no longer. See JobStore.leave.
--
-- KEYS[1]  the prefix
-- ARGV[1]  the job's id

local job = load_job(ARGV[1])
if job then
  job.waiting = string.format('%d', math.max(0, tonumber(job.waiting or '1') - 1))
  redis.call('HSET', P .. 'job:' .. job.id, 'waiting', job.waiting)
  put_alike(job)
end
