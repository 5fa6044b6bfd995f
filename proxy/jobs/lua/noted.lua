-- Notes what became of a notice and gives its job's lease back. See JobStore.noted.
--
-- KEYS[1]  the prefix
-- ARGV[1]  the job's id   ARGV[2]  the token   ARGV[3]  the worker
-- ARGV[4]  when it is due again, "" for never
-- ARGV[5]  the note       ARGV[6]  "1": a try has failed

local job = load_job(ARGV[1])
if not job or LIVE[job.state] or job.token ~= ARGV[2] or job.worker ~= ARGV[3] or job['until'] == '0' then
  return
end
local key = P .. 'job:' .. job.id
redis.call('HSET', key, 'notice_note', ARGV[5], 'until', '0')
job['until'] = '0'
job.notice_due = nil
if ARGV[4] ~= '' then
  job.notice_due = ARGV[4]
  redis.call('HSET', key, 'notice_due', ARGV[4])
else
  redis.call('HDEL', key, 'notice_due')
end
if ARGV[6] == '1' then
  redis.call('HINCRBY', key, 'notice_tries', 1)
end
put_notice(job)
