-- Books an execution of a job that still exists, once. See JobStore.book.
--
-- KEYS[1]  the prefix
-- ARGV[1]  the job's id   ARGV[2]  the booking's key   ARGV[3]  the booking (JSON)
-- Returns 1, or 0 if it is booked already or its job is gone.

if redis.call('EXISTS', P .. 'job:' .. ARGV[1]) == 0 then
  return 0
end
return redis.call('HSETNX', P .. 'book:' .. ARGV[1], ARGV[2], ARGV[3])
