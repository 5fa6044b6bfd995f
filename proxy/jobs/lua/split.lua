-- Refuses a batch and puts its jobs into new ones. See JobStore.split.
--
-- KEYS[1]  the prefix
-- ARGV[1]  JSON: {lease: {id, token, worker}, sources: state -> true, refuse: fields of the batch,
--          back, pack: changes that jobs see, parts: list of {id, set: fields of a batch, ids}}
-- Returns {"gone"}, {"lost"} or {"state", state} with nothing written, else {"ok", hashes of the new batches}.

local request = cjson.decode(ARGV[1])
local lease = request.lease
local state, why = held_batch(lease)
if not state then
  return { why }
end
if not request.sources[state] then
  return { 'state', state }
end
local made = {}
for _, part in ipairs(request.parts) do
  local jobs = {}
  for _, id in ipairs(part.ids) do
    local job = load_job(id)
    if job and job.batch_id == lease.id then
      move_job(job, request.back)
      jobs[#jobs + 1] = job
    end
  end
  if #jobs > 0 then
    fill_batch(part.id, part.set, jobs, request.pack)
    made[#made + 1] = redis.call('HGETALL', P .. 'batch:' .. part.id)
  end
end
for _, id in ipairs(redis.call('SMEMBERS', P .. 'open:' .. lease.id)) do
  move_job(load_job(id), request.back)
end
write_batch(lease.id, request.refuse)
tell_work()
return { 'ok', made }
