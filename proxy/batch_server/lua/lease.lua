-- Prolongs a lease or gives it back. See BatchStore.renew, release and noted.
--
-- KEYS[1]  the prefix
-- ARGV[1]  the id   ARGV[2]  the token   ARGV[3]  the worker   ARGV[4]  when the lease ends: "0" gives it back
-- ARGV[5]  when a live batch is due, "" as before
-- ARGV[6]  what came of the notice: "told", "failed", "" for none   ARGV[7]  when to tell it again
-- Returns 1, or 0 if the lease is lost.

local id = ARGV[1]
local key = P .. 'batch:' .. id
if not is_held(id, ARGV[2], ARGV[3]) then
  return 0
end
local flat = { 'until', ARGV[4] }
if ARGV[5] ~= '' and LIVE[redis.call('HGET', key, 'status')] then
  flat[#flat + 1] = 'due'
  flat[#flat + 1] = ARGV[5]
end
if ARGV[6] ~= '' then
  flat[#flat + 1] = 'notice_due'
  flat[#flat + 1] = ARGV[7]
end
if ARGV[6] == 'failed' then
  redis.call('HINCRBY', key, 'notice_tries', 1)
end
write_batch(id, flat)
return 1
