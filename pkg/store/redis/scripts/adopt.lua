-- adopt: gives a quota document that was written past the door a revision.
--
-- ARGV  2  its field
--       3  default revision and
--       4  term of the installation
--
-- Answers 1 when there was one.

local field, default, term = arg(), arg(), arg()
local q = in_force(field)
if not q.past then return 0 end
enter(default, term)
if q.raw then
  call('HSET', KEYS[1], 'raw', q.raw)
else
  call('HDEL', KEYS[1], 'raw')
end
call('HSET', KEYS[1], 'used', 1, 'revision', q.revision + 1)
return 1
