-- Leases a role, or prolongs the worker's own lease of it. See JobStore.claim_role.
--
-- KEYS[1]  the prefix
-- ARGV[1]  the role   ARGV[2]  now   ARGV[3]  when the lease ends   ARGV[4]  the worker
-- Returns the token, 0 if another worker has the role.

local key = P .. 'role:' .. ARGV[1]
local last = redis.call('HMGET', key, 'token', 'worker', 'until')
local token = tonumber(last[1] or '0')
if not (last[2] == ARGV[4] and last[3] ~= '0') then
  if is_held(last[3], ARGV[2]) then
    return 0
  end
  token = token + 1
end
redis.call('HSET', key, 'token', string.format('%d', token), 'worker', ARGV[4], 'until', ARGV[3])
return token
