-- Ends a batch. See BatchStore.finish.
--
-- KEYS[1]  the prefix
-- ARGV[1]  the id   ARGV[2]  the token   ARGV[3]  the worker
-- ARGV[4]  the progress   ARGV[5]  its status   ARGV[6]  when its notice is due, "" for never
-- ARGV[7], …  id, owner, purpose, creation, expiry and record of each of its files
-- Returns {"lost"} or {"ok", hash of the batch}

local id = ARGV[1]
local key = P .. 'batch:' .. id
if not is_held(id, ARGV[2], ARGV[3]) then
  -- Asked again after an answer that got lost.
  local last = redis.call('HMGET', key, 'token', 'progress', 'status')
  if last[1] == ARGV[2] and last[2] == ARGV[4] and not LIVE[last[3]] then
    return { 'ok', redis.call('HGETALL', key) }
  end
  return { 'lost' }
end
for i = 7, #ARGV, 6 do
  show_file(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5])
end
redis.call('HDEL', key, 'credential')
write_batch(id, {
  'progress', ARGV[4], 'status', ARGV[5], 'waiting', '0', 'notice_due', ARGV[6], 'until', '0',
})
return { 'ok', redis.call('HGETALL', key) }
