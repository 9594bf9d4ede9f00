-- list: reads jobs by id upwards, merged over some of the indexes by id.
--
-- ARGV  2  after this id, or empty
--       3  at most so many
--       4  number of indexes; then their names
--
-- Answers {id, value without payload, worker, …}.

local after, most = arg(), number()
local from = after == '' and '-' or '(' .. after
local ids = {}
for _ = 1, number() do
  for _, id in ipairs(call('ZRANGEBYLEX', base .. arg(), from, '+', 'LIMIT', 0, most)) do ids[#ids + 1] = id end
end
table.sort(ids)
local out = {}
for i = 1, math.min(most, #ids) do
  local v = call('GET', base .. 'j:' .. ids[i])
  out[#out + 1] = ids[i]
  out[#out + 1] = v and bare(v) or ''
  out[#out + 1] = v and string.byte(v, 2) == RUNNING and call('HGET', base .. 'workers', ids[i]) or ''
end
return out
