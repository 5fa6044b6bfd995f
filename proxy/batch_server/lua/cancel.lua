-- Notes that a caller wants a batch to end. See BatchStore.ask_to_cancel.
--
-- KEYS[1]  the prefix
-- ARGV[1]  the id   ARGV[2]  now
-- Returns {"gone"}, {"ended", status}, or {"ok", hash of the batch}

local key = P .. 'batch:' .. ARGV[1]
local found = redis.call('HMGET', key, 'status', 'cancelling_at', 'due')
if not found[1] then
  return { 'gone' }
end
if not LIVE[found[1]] then
  return { 'ended', found[1] }
end
if not found[2] then
  local flat = { 'cancelling_at', ARGV[2] }
  if tonumber(found[3]) > tonumber(ARGV[2]) then
    flat[3], flat[4] = 'due', ARGV[2]
  end
  write_batch(ARGV[1], flat)
end
return { 'ok', redis.call('HGETALL', key) }
