-- term: issues a leader's term.
--
-- ARGV  2  who leads
--
-- Answers {term, default revision}.

local holder = arg()
local term = call('HINCRBY', KEYS[1], 'term', 1)
call('HSET', KEYS[1], 'leader', holder, 'led_since', now)
return { term, tonumber(call('HGET', KEYS[1], 'revision') or 0) }
