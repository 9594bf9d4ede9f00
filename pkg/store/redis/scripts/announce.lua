-- announce: says that an object is about to change whose keys lie elsewhere.
-- Until that is finished, or a minute has passed, every look at the changes
-- names the object.
--
-- ARGV  2  a number for this change alone
--       3  the object
--       4  its namespace, or empty for the installation
--
-- Answers {default revision, term}.

local id, change, ns = arg(), arg(), arg()
local m = call('HMGET', KEYS[1], 'revision', 'term')
call('ZREM', base .. 'erased', ns)
if ns ~= '' then call('ZADD', base .. 'known', 0, ns) end
call('ZADD', base .. 'trails', 'NX', 0, ns)
call('HSET', base .. 'announced', id, digits(now) .. ' ' .. change)
return { tonumber(m[1] or 0), tonumber(m[2] or 0) }
