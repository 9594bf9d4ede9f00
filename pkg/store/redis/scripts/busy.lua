-- busy: notes in a namespace that it is among the busy ones of the installation.
--
-- ARGV  2  number under which it is
--
-- Answers 1 when it has running jobs.

local n = number()
if call('EXISTS', base .. 'running') == 0 then return 0 end
local m = call('HMGET', KEYS[1], 'busy', 'cleared')
if not m[1] and n > tonumber(m[2] or 0) then call('HSET', KEYS[1], 'busy', n) end
return 1
