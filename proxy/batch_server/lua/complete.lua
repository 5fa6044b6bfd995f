-- Completes a file. See BatchStore.complete_file.
--
-- KEYS[1]  the prefix
-- ARGV[1]  the id   ARGV[2]  the owner   ARGV[3]  the purpose   ARGV[4]  when it was made
-- ARGV[5]  when it expires   ARGV[6]  the record
-- Returns 1, or 0 if the file is gone.

if redis.call('EXISTS', P .. 'file:' .. ARGV[1]) == 0 then
  return 0
end
show_file(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6])
return 1
