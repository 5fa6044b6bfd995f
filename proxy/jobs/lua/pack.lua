-- Makes a batch of jobs that are still in its group's pool, or adds them to it. See JobStore.pack.
--
-- KEYS[1]  the prefix
-- ARGV[1]  JSON: {id, pool, now, worker, set: fields of the batch, pack: the change that its jobs see, ids}
-- Returns {"ok", hash of the batch, empty if there is none since no job was left}, or {"lost"} for a batch that
--   is another worker's or on its way.

local request = cjson.decode(ARGV[1])
local key = P .. 'batch:' .. request.id
local last = redis.call('HMGET', key, 'state', 'worker', 'until')
if last[1] and (last[1] ~= 'intent' or last[2] ~= request.worker or last[3] == '0') then
  return { 'lost' }
end
local jobs = {}
for _, id in ipairs(request.ids) do
  local job = load_job(id)
  if job and job.state == 'accepted' and job.tier == 'batch' and job.pool == request.pool
      and not is_held(job['until'], request.now) then
    jobs[#jobs + 1] = job
  end
end
if #jobs > 0 then
  fill_batch(request.id, last[1] and {} or request.set, jobs, request.pack)
  tell_work()
end
return { 'ok', redis.call('HGETALL', key) }
