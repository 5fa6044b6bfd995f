-- Keeps a job, or joins it to one with its attach key. See JobStore.accept and attaching.py.
--
-- KEYS[1]  the prefix
-- ARGV[1]  the job's id
-- ARGV[2]  "1": join a job with the same key
-- ARGV[3]  now        ARGV[4]  how long an ending stays, in seconds
-- ARGV[5…] fields and values of the job's hash
-- Returns {"new" | "same" | "attached", id}.

local function join(job, newcomer)
  local key = P .. 'job:' .. job.id
  local now = ARGV[3]
  job.waiting = string.format('%d', tonumber(job.waiting or '1') + 1)
  if (job.delivery or 'hold') == 'hold' then
    job.delivery = newcomer.delivery
    if job.delivery ~= 'hold' and job.webhook and not LIVE[job.state] then
      -- Whoever was held has heard the end; to the newcomer it is promised, so that it has to be told.
      job.notice_due = now
      redis.call('HSET', key, 'notice_due', now)
      put_notice(job)
    end
  end
  if LIVE[job.state] then
    local before = sooner(job.wanted or job.deadline, job.deadline)
    job.wanted = sooner(before, newcomer.deadline)
    local sooner_by = tonumber(before) - tonumber(job.wanted)
    if job.tier == 'batch' and sooner_by > 0 then
      -- What is due then is its rescue: it keeps its distance to the deadline.
      job.due = later(sooner(job.due, now), string.format('%.6f', tonumber(job.due) - sooner_by))
    end
    job.deadline = later(job.deadline, newcomer.deadline)
    local stays = tonumber(later(job.deadline, now)) + tonumber(ARGV[4])
    job.purge_at = later(job.purge_at, string.format('%.6f', stays))
    redis.call('HSET', key, 'wanted', job.wanted, 'due', job.due, 'deadline', job.deadline,
      'purge_at', job.purge_at)
    redis.call('ZADD', P .. 'due:' .. job.tier, later(job.due, job['until'] or '0'), job.id)
    redis.call('ZADD', P .. 'purge', job.purge_at, 'job:' .. job.id)
  end
  redis.call('HSET', key, 'waiting', job.waiting, 'delivery', job.delivery)
  put_alike(job)
  tell_work()
end

local id = ARGV[1]
local key = P .. 'job:' .. id
if redis.call('EXISTS', key) == 1 then
  return { 'same', id }
end
local fields = {}
for i = 5, #ARGV, 2 do
  fields[ARGV[i]] = ARGV[i + 1]
end
if ARGV[2] == '1' then
  local first = redis.call('ZRANGE', P .. 'alike:' .. fields.attach_key, 0, 0)[1]
  local job = first and load_job(first)
  if job then
    join(job, fields)
    return { 'attached', first }
  end
end
for i = 5, #ARGV, 2 do
  redis.call('HSET', key, ARGV[i], ARGV[i + 1])
end
redis.call('ZADD', P .. 'all', fields.created, id)
redis.call('ZADD', P .. 'owner:' .. fields.owner, fields.created, id)
redis.call('ZADD', P .. 'purge', fields.purge_at, 'job:' .. id)
put_in(load_job(id))
tell_work()
return { 'new', id }
