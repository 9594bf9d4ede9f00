-- deleteschedule: removes a schedule and writes the audit record.
--
-- ARGV  2  name, 3 the record from its revision on
--
-- Answers 1 when there was one.

local name, rest = arg(), arg()
if call('ZREM', base .. 'schedules', name) == 0 then return 0 end
call('ZREM', base .. 'due', name)
call('DEL', base .. 's:' .. name)
append(now, rest)
return 1
