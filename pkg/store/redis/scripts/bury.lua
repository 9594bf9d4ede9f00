-- bury: deletes dead letters by id.
--
-- ARGV  2  the record's outcome and 3 its fixed part
--       4  number of ids; then the ids
--
-- Answers how many there were.

local outcome, fixed = arg(), arg()
local n, keys = 0, {}
for _ = 1, number() do
  local id = arg()
  local raw = call('GETRANGE', base .. 'j:' .. id, 0, 2)
  if #raw == 3 and string.byte(raw, 2) == DEAD and keys[id] == nil then
    n, keys[id] = n + 1, true
    drop(has(string.byte(raw, 3), SHED) and 'shed' or 'dead', id)
    drop('died', id)
  end
end
for id in pairs(keys) do call('DEL', base .. 'j:' .. id, base .. 'b:' .. id, base .. 'r:' .. id) end
write_indexes()
if n > 0 then append_count(outcome, 'deleted', n, fixed) end
return n
