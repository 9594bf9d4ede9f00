-- raise: tells a space of the installation's default revision and term. Neither
-- ever falls.
--
-- ARGV  2  default revision
--       3  term

local default, term = number(), number()
local m = call('HMGET', KEYS[1], 'default', 'term')
if default > tonumber(m[1] or 0) then call('HSET', KEYS[1], 'default', default) end
if term > tonumber(m[2] or 0) then call('HSET', KEYS[1], 'term', term) end
return 1
