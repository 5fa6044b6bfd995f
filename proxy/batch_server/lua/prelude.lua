#!lua
-- What every script of the batch store shares; it is put before each of them. The first line makes servers from
-- Redis 7.0 on refuse keys of other slots and, when memory is full, the whole script before it begins.
--
-- KEYS[1]  the prefix, `weir:{<namespace>}:served:`. Every key that a script touches begins with it, so that all
--          have one hash tag and lie in one slot of a Cluster. Chunks have a tag per file and no script touches
--          them.
--
-- Keys behind the prefix:
--   file:<id>                 hash    `record` (JSON) of a file, with owner, purpose, created, expires, is_complete
--   files:all:<owner>         zset    ids of an owner's complete files by creation
--   files:<purpose>:<owner>   zset    those with a purpose
--   chunks:<file id>          hash    number of a chunk -> the last part of its key
--   batch:<id>                hash    facts (JSON) and progress of a batch; `token`, `worker`, `until` are its lease
--   batches:<owner>           zset    ids of an owner's batches by creation
--   lines:<batch id>          bitmap  which lines have their results
--   wanted                    zset    ids of batches by when a worker has to take them up: when they or their
--                                     notices are due, or the end of the lease
--   ends                      zset    ids of batches by when nothing but their end is left: when their notice is
--                                     due, their caller wanted that, their window is over, or the end of the lease
--   status:<status>           set     ids of batches
--   waiting                   number  lines of live batches without results
--   purge                     zset    `file:<id>` and `batch:<id>` by when they are deleted
-- Behind `weir:<namespace>:served:`, with a hash tag of its own:
--   chunk:{<file id>}:<number>:<try>  the chunk, which expires by itself
--
-- Times are texts of seconds since the epoch: Lua would round them if it wrote them itself.

local P = KEYS[1]
local LIVE = { validating = true, in_progress = true, finalizing = true }

local function later(one, other)
  if tonumber(one) >= tonumber(other) then
    return one
  end
  return other
end

-- Whether a lease is the last one of a batch and was not given back.
local function is_held(id, token, worker)
  local last = redis.call('HMGET', P .. 'batch:' .. id, 'token', 'worker', 'until')
  return last[1] == token and last[2] == worker and last[3] ~= '0'
end

-- Writes fields of a batch, given as a flat list, and its place in the indexes.
local function write_batch(id, flat)
  local key = P .. 'batch:' .. id
  local before = redis.call('HMGET', key, 'status', 'waiting')
  redis.call('HSET', key, unpack(flat))
  local now = redis.call('HMGET', key, 'status', 'waiting', 'due', 'notice_due', 'until', 'cancelling_at', 'expires')
  if before[1] ~= now[1] then
    if before[1] then
      redis.call('SREM', P .. 'status:' .. before[1], id)
    end
    redis.call('SADD', P .. 'status:' .. now[1], id)
  end
  local more = tonumber(now[2]) - tonumber(before[2] or '0')
  if more ~= 0 then
    redis.call('INCRBY', P .. 'waiting', string.format('%d', more))
  end
  local wanted, ends = now[4], now[4]
  if LIVE[now[1]] then
    wanted, ends = now[3], now[6] or now[7]
  end
  if wanted and wanted ~= '' then
    redis.call('ZADD', P .. 'wanted', later(wanted, now[5]), id)
  else
    redis.call('ZREM', P .. 'wanted', id)
  end
  if ends and ends ~= '' then
    redis.call('ZADD', P .. 'ends', later(ends, now[5]), id)
  else
    redis.call('ZREM', P .. 'ends', id)
  end
end

-- Lets callers see a file.
local function show_file(id, owner, purpose, created, expires, record)
  redis.call('HSET', P .. 'file:' .. id, 'owner', owner, 'purpose', purpose, 'created', created,
    'expires', expires, 'is_complete', '1', 'record', record)
  redis.call('ZADD', P .. 'files:all:' .. owner, created, id)
  redis.call('ZADD', P .. 'files:' .. purpose .. ':' .. owner, created, id)
  redis.call('ZADD', P .. 'purge', expires, 'file:' .. id)
end

