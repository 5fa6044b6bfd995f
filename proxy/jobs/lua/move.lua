-- Moves jobs, and the batch that holds them, in one step. See JobStore.commit_job, commit_batch, cancel,
-- deliver and reset.
--
-- KEYS[1]  the prefix
-- ARGV[1]  JSON:
--   job_lease, batch_lease  {id, token, worker}: one of them, or none where nobody needs to hold anything
--   batch    {sources: state -> true, set: field -> text, drop: fields, empties: boolean}, or none
--   changes  list of {ids, targets: state -> state, set, drop, tries, is_ending, answer_source, booking,
--            if_unwanted: only where nobody waits}
-- Returns {"gone"}, {"lost"}, {"state", state} or {"holds", state} with nothing written, or
--   {"ok", ids moved, {id, state, …} refused with "" for a deleted job, hash of the batch,
--    hash of the only job before, hash of the only job after}

local request = cjson.decode(ARGV[1])
local lease = request.batch_lease
local batch_state = nil
if lease then
  local why
  batch_state, why = held_batch(lease)
  if not batch_state then
    return { why }
  end
  if request.batch and not request.batch.sources[batch_state] then
    return { 'state', batch_state }
  end
end

local moving, applied, refused, leaving = {}, {}, {}, 0
local only = nil
for _, change in ipairs(request.changes) do
  for _, id in ipairs(change.ids) do
    local job = load_job(id)
    if #change.ids == 1 and #request.changes == 1 then
      only = P .. 'job:' .. id
    end
    if job and change.answer_source and job.answer_source == change.answer_source then
      applied[#applied + 1] = id
    elseif job and change.targets[job.state] and (not lease or job.batch_id == lease.id)
        and not (change.if_unwanted and tonumber(job.waiting or '1') > 0) then
      moving[#moving + 1] = { job, change }
      if change.is_leaving then
        leaving = leaving + 1
      end
    else
      refused[#refused + 1] = id
      refused[#refused + 1] = job and job.state or ''
    end
  end
end
if request.batch and request.batch.empties and leaving < redis.call('SCARD', P .. 'open:' .. lease.id) then
  return { 'holds', batch_state }
end
local owned = request.job_lease
if owned and #moving > 0 then
  local job = moving[1][1]
  if job.token ~= owned.token or job.worker ~= owned.worker or job['until'] == '0' then
    return { 'lost' }
  end
end

local before = only and redis.call('HGETALL', only) or {}
local is_returning = false
for _, pair in ipairs(moving) do
  move_job(pair[1], pair[2])
  applied[#applied + 1] = pair[1].id
  is_returning = is_returning or pair[1].state == 'accepted'
end
if request.batch then
  write_batch(lease.id, request.batch.set)
  if #request.batch.drop > 0 then
    redis.call('HDEL', P .. 'batch:' .. lease.id, unpack(request.batch.drop))
  end
end
tell_ended()
if is_returning then
  tell_work()
end
return {
  'ok', applied, refused, lease and redis.call('HGETALL', P .. 'batch:' .. lease.id) or {}, before,
  only and redis.call('HGETALL', only) or {},
}
