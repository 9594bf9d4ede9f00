-- quota: reads the quota document of a space. It writes nothing.
--
-- ARGV  2  its field
--
-- Answers {1 if there is one, document, revision, default revision, 1 if it was written past the door, updated, by}.

local q = in_force(arg())
local m = call('HMGET', KEYS[1], 'updated_at', 'updated_by')
return { q.raw and 1 or 0, q.raw or '', q.revision, q.fallback, q.past and 1 or 0, tonumber(m[1] or 0), m[2] or '' }
