-- retryable: finds dead letters that may be retried automatically, by finished
-- time and id. The index by finished time has shed ones too; the index of those
-- that were not shed tells them apart a thousand at a time.
--
-- ARGV  2  finished time and 3 id after which it begins, the id empty at first
--       4  time before which they died
--       5  fewer retries than this
--       6  at most so many
--       7  at most about so many looked at
--
-- Answers {finished time and id of the last one looked at, or empty at the end, id …}.

local from, after, before, most, limit, look = arg(), arg(), arg(), number(), number(), number()
local STEP = 1000
local out, offset, last_at, last_id = { '', '' }, 0, nil, nil
local ended = false
while true do
  local part = call('ZRANGEBYSCORE', base .. 'died', from, '(' .. before, 'WITHSCORES', 'LIMIT', offset, STEP)
  local ids, ats = {}, {}
  for i = 1, #part, 2 do
    if after == '' or tonumber(part[i + 1]) > tonumber(from) or part[i] > after then
      ids[#ids + 1], ats[#ats + 1] = part[i], part[i + 1]
    end
  end
  local real = #ids > 0 and call('ZMSCORE', base .. 'dead', unpack(ids)) or {}
  local full = false
  for i, id in ipairs(ids) do
    if #out - 2 == limit then
      full = true
      break
    end
    last_at, last_id = ats[i], id
    if real[i] then
      local retries = string.byte(call('GETRANGE', base .. 'j:' .. id, 98, 98))
      if retries and retries < most then out[#out + 1] = id end
    end
  end
  offset = offset + STEP
  if full or offset >= look then break end
  if #part < 2 * STEP then
    ended = true
    break
  end
end
if not ended and last_id then out[1], out[2] = last_at, last_id end
return out
