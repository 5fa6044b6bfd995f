-- Finds the ids of a page. See BatchStore.list_files and list_batches.
--
-- KEYS[1]  the prefix
-- ARGV[1]  the index   ARGV[2]  the id that the page begins behind, "" for the first page
-- ARGV[3]  "REV" for newest first, "" for oldest first   ARGV[4]  how many at most
-- ARGV[5]  now: files that have expired are left out; "" for batches   ARGV[6]  the index that `after` has to be in
-- Returns {"none"} for an id that is not in the index, else {"ok", id, …}

local STEP = 500
local index, is_reversed, limit = P .. ARGV[1], ARGV[3] == 'REV', tonumber(ARGV[4])

-- Where the page begins: the first place behind a score and an id, whether that id is in this index or not.
local function place_behind(score, id)
  local first, last = 0, redis.call('ZCARD', index)
  while first < last do
    local middle = math.floor((first + last) / 2)
    local found
    if is_reversed then
      found = redis.call('ZREVRANGE', index, middle, middle, 'WITHSCORES')
    else
      found = redis.call('ZRANGE', index, middle, middle, 'WITHSCORES')
    end
    local there = tonumber(found[2])
    local is_behind
    if is_reversed then
      is_behind = there < score or (there == score and found[1] < id)
    else
      is_behind = there > score or (there == score and found[1] > id)
    end
    if is_behind then
      last = middle
    else
      first = middle + 1
    end
  end
  return first
end

local place = 0
if ARGV[2] ~= '' then
  local score = redis.call('ZSCORE', P .. ARGV[6], ARGV[2])
  if not score then
    return { 'none' }
  end
  place = place_behind(tonumber(score), ARGV[2])
end
local page = { 'ok' }
while #page - 1 < limit do
  local ids
  if is_reversed then
    ids = redis.call('ZREVRANGE', index, place, place + STEP - 1)
  else
    ids = redis.call('ZRANGE', index, place, place + STEP - 1)
  end
  for _, id in ipairs(ids) do
    local expires = ARGV[5] ~= '' and redis.call('HGET', P .. 'file:' .. id, 'expires')
    if #page - 1 < limit and (ARGV[5] == '' or (expires and tonumber(expires) > tonumber(ARGV[5]))) then
      page[#page + 1] = id
    end
  end
  if #ids < STEP then
    break
  end
  place = place + STEP
end
return page
