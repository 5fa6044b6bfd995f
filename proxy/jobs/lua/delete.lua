-- Deletes a job, or what is due to be deleted. See JobStore.delete and purge.
--
-- KEYS[1]  the prefix
-- ARGV[1]  the id of a job, "" for what is due
-- ARGV[2]  now        ARGV[3]  how many at most
-- Returns {job, …} names `job:<id>` and `batch:<id>` of what is gone, with the key of a job's answer behind it.

local gone = {}
local function drop_job(id)
  local job = load_job(id)
  if not job then
    return
  end
  take_out(job)
  redis.call('ZREM', P .. 'all', id)
  redis.call('ZREM', P .. 'owner:' .. job.owner, id)
  gone[#gone + 1] = { 'job:' .. id, redis.call('HGET', P .. 'job:' .. id, 'answer_key') or '' }
  redis.call('DEL', P .. 'job:' .. id, P .. 'book:' .. id)
  ended[#ended + 1] = id
end
local function drop_batch(id)
  local state = redis.call('HGET', P .. 'batch:' .. id, 'state')
  if state then
    redis.call('SREM', P .. 'batches:' .. state, id)
    redis.call('DEL', P .. 'batch:' .. id, P .. 'members:' .. id, P .. 'open:' .. id)
    redis.call('ZREM', P .. 'batch_due', id)
    gone[#gone + 1] = { 'batch:' .. id, '' }
  end
end

if ARGV[1] ~= '' then
  drop_job(ARGV[1])
  redis.call('ZREM', P .. 'purge', 'job:' .. ARGV[1])
else
  local due = redis.call('ZRANGE', P .. 'purge', '-inf', ARGV[2], 'BYSCORE', 'LIMIT', 0, tonumber(ARGV[3]))
  for _, name in ipairs(due) do
    redis.call('ZREM', P .. 'purge', name)
    if string.sub(name, 1, 4) == 'job:' then
      drop_job(string.sub(name, 5))
    else
      drop_batch(string.sub(name, 7))
    end
  end
end
tell_ended()
return gone
