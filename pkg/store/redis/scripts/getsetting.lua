-- getsetting: reads one setting. It writes nothing.
--
-- ARGV  2  its key
--
-- Answers {} or {key, value, revision, updated, by}.

local key = arg()
local s = setting(key)
if not s then return {} end
return { key, s.value, s.revision, s.at, s.by }
