-- trim: deletes the oldest rows of one table of history.
--
-- ARGV  2  field of the quota document
--       3  term
--       4  archived or died, the table by finished time
--       5  revision or empty: the stamp is not looked at
--       6  default revision
--       7  rows to keep or empty
--       8  time before which they finished
--       9  at most so many, no more than 500
--
-- Answers {1} when the namespace is not registered, {2} for an old term, {3} for a stale stamp,
-- else {0, completed, cancelled, dead, shed, 1 if more are left}.

local field, term, table_name = arg(), number(), arg()
local revision, default, keep, before, limit = optional(), number(), optional(), arg(), number()

local m = call('HMGET', KEYS[1], 'known', 'term')
if not m[1] then return { 1 } end
if term < tonumber(m[2] or 0) then return { 2 } end
local q = in_force(field)
if revision and (q.past or revision ~= q.revision or default ~= q.default) then return { 3 } end

local by_time = base .. table_name
local excess
if keep then
  excess = call('ZCARD', by_time) - keep
else
  excess = call('ZCOUNT', by_time, '-inf', '(' .. before)
end
local n = math.min(limit, excess)
local ids = n > 0 and call('ZRANGE', by_time, 0, n - 1) or {}
local counts, gone, keys = { [COMPLETE] = 0, [CANCELLED] = 0, [DEAD] = 0 }, {}, {}
local shed = 0
for _, id in ipairs(ids) do
  local state, flags = string.byte(call('GETRANGE', base .. 'j:' .. id, 1, 2), 1, 2)
  local index = table_name == 'archived' and 'archive' or 'dead'
  if state == DEAD and has(flags, SHED) then
    shed, index = shed + 1, 'shed'
  elseif counts[state] then
    counts[state] = counts[state] + 1
  end
  gone[index] = gone[index] or {}
  table.insert(gone[index], id)
  keys[#keys + 1], keys[#keys + 2], keys[#keys + 3] = base .. 'j:' .. id, base .. 'b:' .. id, base .. 'r:' .. id
end

if term > tonumber(m[2] or 0) then call('HSET', KEYS[1], 'term', term) end
if #ids > 0 then
  call('ZREM', by_time, unpack(ids))
  for index, members in pairs(gone) do call('ZREM', base .. index, unpack(members)) end
  call('DEL', unpack(keys))
end
return { 0, counts[COMPLETE], counts[CANCELLED], counts[DEAD], shed, excess > n and excess > 0 and 1 or 0 }
