-- Deletes a file, or what is due to be deleted. See BatchStore.delete_file and purge.
--
-- KEYS[1]  the prefix
-- ARGV[1]  the id of a file, "" for what is due   ARGV[2]  now   ARGV[3]  how many at most
-- Returns {how many are gone, {id of a file, its chunks (number, last part of the key, …), …}, 1 if more is due}

local gone, chunks = 0, {}
local function drop_file(id)
  local known = redis.call('HMGET', P .. 'file:' .. id, 'owner', 'purpose')
  if known[1] then
    redis.call('ZREM', P .. 'files:all:' .. known[1], id)
    redis.call('ZREM', P .. 'files:' .. known[2] .. ':' .. known[1], id)
  end
  redis.call('ZREM', P .. 'purge', 'file:' .. id)
  chunks[#chunks + 1] = id
  chunks[#chunks + 1] = redis.call('HGETALL', P .. 'chunks:' .. id)
  redis.call('UNLINK', P .. 'chunks:' .. id)
  return redis.call('UNLINK', P .. 'file:' .. id)
end
local function drop_batch(id)
  local key = P .. 'batch:' .. id
  local found = redis.call('HMGET', key, 'status', 'waiting', 'owner', 'output_file_id', 'error_file_id')
  redis.call('ZREM', P .. 'purge', 'batch:' .. id)
  if not found[1] then
    return 0
  end
  redis.call('SREM', P .. 'status:' .. found[1], id)
  if found[2] ~= '0' then
    redis.call('DECRBY', P .. 'waiting', found[2])
  end
  redis.call('ZREM', P .. 'batches:' .. found[3], id)
  redis.call('ZREM', P .. 'wanted', id)
  redis.call('ZREM', P .. 'ends', id)
  redis.call('UNLINK', key, P .. 'lines:' .. id)
  drop_file(found[4])
  drop_file(found[5])
  return 1
end

if ARGV[1] ~= '' then
  -- Chunks without a file are those of a batch that still runs.
  if redis.call('EXISTS', P .. 'file:' .. ARGV[1]) == 1 then
    gone = drop_file(ARGV[1])
  end
  return { gone, chunks, 0 }
end
local due = redis.call('ZRANGE', P .. 'purge', '-inf', ARGV[2], 'BYSCORE', 'LIMIT', 0, tonumber(ARGV[3]))
for _, name in ipairs(due) do
  if string.sub(name, 1, 5) == 'file:' then
    gone = gone + drop_file(string.sub(name, 6))
  else
    gone = gone + drop_batch(string.sub(name, 7))
  end
end
return { gone, chunks, #due == tonumber(ARGV[3]) and 1 or 0 }
