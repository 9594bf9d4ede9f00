-- idle: says that a namespace without running jobs need not be looked at for
-- ended leases any more. The number under which it was put among the busy ones
-- is noted, so that a turn which still relies on it registers again.
--
-- ARGV  2  that number
--       3  the last grant as it was seen
--
-- Answers 1 when it is idle.

local seen, granted = number(), number()
local m = call('HMGET', KEYS[1], 'busy', 'cleared', 'granted')
if call('EXISTS', base .. 'running') == 1 or tonumber(m[3] or 0) ~= granted or tonumber(m[1] or 0) > seen then return 0 end
call('HDEL', KEYS[1], 'busy')
call('HSET', KEYS[1], 'cleared', math.max(seen, tonumber(m[2] or 0)))
return 1
