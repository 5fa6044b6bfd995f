-- Writes the progress of a batch, with results or without. See BatchStore.save and record.
--
-- KEYS[1]  the prefix
-- ARGV[1]  the id   ARGV[2]  the token   ARGV[3]  the worker
-- ARGV[4]  the progress   ARGV[5]  its status   ARGV[6]  how many lines wait after it
-- ARGV[7]  the progress that it follows, "" for any
-- ARGV[8]  JSON: {chunks: list of {file id, number, last part of the key}, lines: list of numbers}
-- Returns {"lost"}, {"moved"} if the batch has another progress by now, or {"ok", hash of the batch}

local id = ARGV[1]
local key = P .. 'batch:' .. id
if not is_held(id, ARGV[2], ARGV[3]) then
  return { 'lost' }
end
if ARGV[7] ~= '' and redis.call('HGET', key, 'progress') ~= ARGV[7] then
  return { 'moved' }
end
local added = cjson.decode(ARGV[8])
for _, chunk in ipairs(added.chunks) do
  redis.call('HSET', P .. 'chunks:' .. chunk[1], chunk[2], chunk[3])
end
for _, number in ipairs(added.lines) do
  redis.call('SETBIT', P .. 'lines:' .. id, number, 1)
end
write_batch(id, { 'progress', ARGV[4], 'status', ARGV[5], 'waiting', ARGV[6] })
return { 'ok', redis.call('HGETALL', key) }
