-- Prolongs a lease or gives it back. See JobStore.renew and release.
--
-- KEYS[1]  the prefix
-- ARGV[1]  "job", "batch" or "role"   ARGV[2]  the subject   ARGV[3]  the token   ARGV[4]  the worker
-- ARGV[5]  when the lease ends: "0" gives it back
-- ARGV[6]  when the subject is due, "" as before
-- Returns 1, or 0 if the lease is lost.

local kind, id = ARGV[1], ARGV[2]
local key = P .. kind .. ':' .. id
local last = redis.call('HMGET', key, 'token', 'worker', 'until', 'due', 'tier', 'state',
  'webhook', 'notice_due')
if last[1] ~= ARGV[3] or last[2] ~= ARGV[4] or not last[3] or last[3] == '0' then
  return 0
end
redis.call('HSET', key, 'until', ARGV[5])
local due = last[4]
if ARGV[6] ~= '' then
  due = ARGV[6]
  redis.call('HSET', key, 'due', due)
end
if kind == 'job' and LIVE[last[6]] then
  redis.call('ZADD', P .. 'due:' .. last[5], later(due, ARGV[5]), id)
elseif kind == 'job' and last[7] and last[8] then
  redis.call('ZADD', P .. 'notice:' .. last[7], later(last[8], ARGV[5]), id)
elseif kind == 'batch' then
  redis.call('ZADD', P .. 'batch_due', later(due, ARGV[5]), id)
end
if ARGV[5] == '0' then
  tell_work()
end
return 1
