#!lua
-- What every script of the job store shares; it is put before each of them. The first line makes servers from
-- Redis 7.0 on refuse keys of other slots and, when memory is full, the whole script before it begins.
--
-- KEYS[1]  the prefix, `weir:{<namespace>}:`. Every key that a script touches begins with it, so that all have
--          one hash tag and lie in one slot of a Cluster. Bodies and answers have tags of their own and no
--          script touches them.
--
-- Keys behind the prefix:
--   job:<id>         hash    facts (JSON) and progress of a job; `token`, `worker`, `until` are its lease
--   alike:<key>      zset    ids of the jobs with an attach key by which is joined first (`attaching.py`)
--   state:<state>    zset    ids of jobs by creation
--   all              zset    ids of all jobs by creation
--   owner:<owner>    zset    ids of a submitter's jobs by creation
--   due:<tier>       zset    ids of live jobs by when somebody has to take them up: due, or the end of the lease
--   pool:<pool>      zset    ids of accepted jobs for batch by when they are ready; <pool> is a digest
--   pools            hash    pool -> its group (JSON)
--   pool_bytes, pool_tokens  hash  pool -> sums over its jobs
--   book:<id>        hash    a job's bookings (JSON) by key
--   batch:<id>       hash    facts and progress of a batch, with its lease
--   members:<batch>  list    ids of the jobs that a batch was made of, in order
--   open:<batch>     set     ids of the jobs that it still holds
--   batch_due        zset    ids of batches by when somebody has to take them up
--   batches:<state>  set     ids of batches
--   purge            zset    `job:<id>` and `batch:<id>` by when they are deleted
--   role:<role>      hash    the lease of a role
--   notice:<webhook> zset    ids of ended jobs by when that webhook has to be told: due, or the end of the lease
--   notices          set     webhooks that have such jobs
-- Channels: ended (ids of jobs, divided by blanks), work.
--
-- Times are texts of seconds since the epoch: Lua would round them if it wrote them itself.

local P = KEYS[1]
local LIVE = { accepted = true, packed = true, submitted = true }
local FIELDS = {
  'state', 'tier', 'due', 'ready', 'until', 'token', 'worker', 'batch_id', 'pool', 'body_bytes',
  'input_tokens', 'created', 'ended_as', 'answer_source', 'owner', 'attach_key', 'delivery', 'deadline',
  'wanted', 'waiting', 'purge_at', 'webhook', 'notice_due',
}
local ended = {}
local has_notice = false

local function load_job(id)
  local values = redis.call('HMGET', P .. 'job:' .. id, unpack(FIELDS))
  if not values[1] then
    return nil
  end
  local job = { id = id }
  for i, name in ipairs(FIELDS) do
    job[name] = values[i] or nil
  end
  return job
end

local function later(one, other)
  if tonumber(one) >= tonumber(other) then
    return one
  end
  return other
end

local function is_held(lease_until, now)
  return lease_until and tonumber(lease_until) > tonumber(now)
end

local function sooner(one, other)
  if tonumber(one) <= tonumber(other) then
    return one
  end
  return other
end

local function minus(count)
  return string.format('%d', -tonumber(count))
end

-- Puts a job among those with its attach key, where retries look for theirs.
local function put_alike(job)
  local alike = P .. 'alike:' .. job.attach_key
  local is_good = job.ended_as == 'succeeded' or job.ended_as == 'rescued'
  local waiting = tonumber(job.waiting or '1')
  if LIVE[job.state] or (is_good and job.state ~= 'delivered') then
    redis.call('ZADD', alike, waiting, job.id)
  elseif is_good then
    redis.call('ZADD', alike, 1000000000 + waiting, job.id)
  else
    redis.call('ZREM', alike, job.id)
  end
end

-- Puts a job among those whose end has to be told, or takes it out.
local function put_notice(job)
  if not job.webhook then
    return
  end
  local index = P .. 'notice:' .. job.webhook
  if job.notice_due then
    redis.call('ZADD', index, later(job.notice_due, job['until'] or '0'), job.id)
    redis.call('SADD', P .. 'notices', job.webhook)
  else
    redis.call('ZREM', index, job.id)
  end
end

-- Takes a job out of every index that follows its progress.
local function take_out(job)
  redis.call('ZREM', P .. 'state:' .. job.state, job.id)
  redis.call('ZREM', P .. 'alike:' .. job.attach_key, job.id)
  if LIVE[job.state] then
    redis.call('ZREM', P .. 'due:' .. job.tier, job.id)
  end
  if job.state == 'accepted' and job.tier == 'batch' then
    local pool = job.pool
    redis.call('ZREM', P .. 'pool:' .. pool, job.id)
    if redis.call('EXISTS', P .. 'pool:' .. pool) == 0 then
      redis.call('HDEL', P .. 'pools', pool)
      redis.call('HDEL', P .. 'pool_bytes', pool)
      redis.call('HDEL', P .. 'pool_tokens', pool)
    else
      redis.call('HINCRBY', P .. 'pool_bytes', pool, minus(job.body_bytes))
      redis.call('HINCRBY', P .. 'pool_tokens', pool, minus(job.input_tokens))
    end
  end
  if job.batch_id then
    redis.call('SREM', P .. 'open:' .. job.batch_id, job.id)
  end
  if job.webhook then
    redis.call('ZREM', P .. 'notice:' .. job.webhook, job.id)
  end
end

-- Puts a job into the indexes that follow its progress.
local function put_in(job)
  redis.call('ZADD', P .. 'state:' .. job.state, job.created, job.id)
  put_alike(job)
  if LIVE[job.state] then
    redis.call('ZADD', P .. 'due:' .. job.tier, later(job.due, job['until'] or '0'), job.id)
  end
  if job.state == 'accepted' and job.tier == 'batch' then
    local pool = job.pool
    if redis.call('HEXISTS', P .. 'pools', pool) == 0 then
      redis.call('HSET', P .. 'pools', pool, redis.call('HGET', P .. 'job:' .. job.id, 'group'))
    end
    redis.call('ZADD', P .. 'pool:' .. pool, job.ready, job.id)
    redis.call('HINCRBY', P .. 'pool_bytes', pool, job.body_bytes)
    redis.call('HINCRBY', P .. 'pool_tokens', pool, job.input_tokens)
  end
  if job.batch_id then
    redis.call('SADD', P .. 'open:' .. job.batch_id, job.id)
  end
  put_notice(job)
end

-- Writes a change of a loaded job whose state it fits.
--   targets  state -> state;  set  field -> text;  drop  fields;  tries  it is sent once more
--   is_ending  waiters are told;  booking {key, text}
local function move_job(job, change)
  local key = P .. 'job:' .. job.id
  take_out(job)
  job.state = change.targets[job.state]
  local pairs_to_set = { 'state', job.state }
  for name, value in pairs(change.set) do
    pairs_to_set[#pairs_to_set + 1] = name
    pairs_to_set[#pairs_to_set + 1] = value
    job[name] = value
  end
  for _, name in ipairs(change.drop) do
    job[name] = nil
  end
  if change.is_ending and job.webhook and (job.delivery or 'hold') ~= 'hold' then
    job.notice_due = change.set.ended
    pairs_to_set[#pairs_to_set + 1] = 'notice_due'
    pairs_to_set[#pairs_to_set + 1] = job.notice_due
    has_notice = true
  end
  redis.call('HSET', key, unpack(pairs_to_set))
  if #change.drop > 0 then
    redis.call('HDEL', key, unpack(change.drop))
  end
  if change.tries then
    redis.call('HINCRBY', key, 'attempts', 1)
  end
  put_in(job)
  if change.set.purge_at then
    redis.call('ZADD', P .. 'purge', change.set.purge_at, 'job:' .. job.id)
  end
  if change.is_ending then
    ended[#ended + 1] = job.id
  end
  if change.booking then
    redis.call('HSETNX', P .. 'book:' .. job.id, change.booking[1], change.booking[2])
  end
end

local function tell_ended()
  for first = 1, #ended, 1000 do
    local last = math.min(first + 999, #ended)
    redis.call('PUBLISH', P .. 'ended', table.concat(ended, ' ', first, last))
  end
  if has_notice then
    redis.call('PUBLISH', P .. 'work', '')
  end
end

local function tell_work()
  redis.call('PUBLISH', P .. 'work', '')
end

-- The state of a batch, if its lease is the one given: else nil and why.
local function held_batch(lease)
  local held = redis.call('HMGET', P .. 'batch:' .. lease.id, 'state', 'token', 'worker', 'until')
  if not held[1] then
    return nil, 'gone'
  end
  if held[2] ~= lease.token or held[3] ~= lease.worker or held[4] == '0' then
    return nil, 'lost'
  end
  return held[1]
end

-- Writes fields of a batch and its place in the indexes.
local function write_batch(id, set)
  local key = P .. 'batch:' .. id
  local before = redis.call('HGET', key, 'state')
  local pairs_to_set = {}
  for name, value in pairs(set) do
    pairs_to_set[#pairs_to_set + 1] = name
    pairs_to_set[#pairs_to_set + 1] = value
  end
  redis.call('HSET', key, unpack(pairs_to_set))
  local now = redis.call('HMGET', key, 'state', 'due', 'until', 'purge_at')
  if before and before ~= now[1] then
    redis.call('SREM', P .. 'batches:' .. before, id)
  end
  redis.call('SADD', P .. 'batches:' .. now[1], id)
  redis.call('ZADD', P .. 'batch_due', later(now[2], now[3] or '0'), id)
  redis.call('ZADD', P .. 'purge', now[4], 'batch:' .. id)
end

-- Makes a batch of loaded jobs that are accepted; `pack` is the change that each of them sees.
local function fill_batch(id, set, jobs, pack)
  local counted = redis.call('HMGET', P .. 'batch:' .. id, 'job_count', 'input_bytes', 'input_tokens')
  local bytes, tokens = 0, 0
  if counted[1] then
    bytes, tokens = tonumber(counted[2]), tonumber(counted[3])
  end
  for _, job in ipairs(jobs) do
    bytes = bytes + tonumber(job.body_bytes)
    tokens = tokens + tonumber(job.input_tokens)
  end
  set.job_count = string.format('%d', #jobs + tonumber(counted[1] or '0'))
  set.input_bytes = string.format('%d', bytes)
  set.input_tokens = string.format('%d', tokens)
  write_batch(id, set)
  pack.set.batch_id = id
  for _, job in ipairs(jobs) do
    redis.call('RPUSH', P .. 'members:' .. id, job.id)
    move_job(job, pack)
  end
end
