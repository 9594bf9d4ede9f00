-- postpone: puts off a refused slot of a schedule.
--
-- ARGV  2  name, 3 revision and 4 slot at which it must stand
--       5  refused slot, 6 reason, 7 tries, 8 when to try again
--       9  the record from its revision on, for the first refusal of the slot
--
-- Answers 1 when it stood there.

local name, revision, due = arg(), number(), number()
local slot, reason, tries, retry, rest = number(), arg(), number(), number(), arg()
local s = standing(name)
if not s or s.paused or s.revision ~= revision or s.next ~= due then return 0 end
call('HSET', base .. 's:' .. name, 'refused', digits(slot), 'reason', reason, 'tries', digits(tries), 'retry', digits(retry))
set_due(name, retry)
if s.refused ~= slot then append(now, rest) end
return 1
