-- Keeps a job, or finds the one that it is attached to. See JobStore.accept.
--
-- KEYS[1]  the prefix
-- ARGV[1]  the job's id
-- ARGV[2]  "1": attach to a job with the same key
-- ARGV[3…] fields and values of the job's hash
-- Returns {"new" | "same" | "attached", id}.

local id = ARGV[1]
local key = P .. 'job:' .. id
if redis.call('EXISTS', key) == 1 then
  return { 'same', id }
end
local fields = {}
for i = 3, #ARGV, 2 do
  fields[ARGV[i]] = ARGV[i + 1]
end
local attach = P .. 'attach:' .. fields.attach_key
if ARGV[2] == '1' then
  local holder = redis.call('GET', attach)
  local job = holder and load_job(holder)
  if job and (LIVE[job.state] or job.ended_as == 'succeeded' or job.ended_as == 'rescued') then
    return { 'attached', holder }
  end
end
for i = 3, #ARGV, 2 do
  redis.call('HSET', key, ARGV[i], ARGV[i + 1])
end
redis.call('SET', attach, id)
redis.call('ZADD', P .. 'all', fields.created, id)
redis.call('ZADD', P .. 'owner:' .. fields.owner, fields.created, id)
redis.call('ZADD', P .. 'purge', fields.purge_at, 'job:' .. id)
put_in(load_job(id))
tell_work()
return { 'new', id }
