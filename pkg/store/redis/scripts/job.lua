-- job: reads one job with everything.
--
-- ARGV  2  id
--
-- Answers {} or {value, payload kept aside, result, worker}; absent ones are nil.

local id = arg()
local v = call('GET', base .. 'j:' .. id)
if not v then return {} end
return { v, call('GET', base .. 'b:' .. id) or '', call('GET', base .. 'r:' .. id) or '', call('HGET', base .. 'workers', id) or '' }
