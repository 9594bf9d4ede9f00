-- listsettings: reads settings by key. It writes nothing.
--
-- ARGV  2  after this key, or empty
--       3  at most so many
--
-- Answers {key, value, revision, updated, by, …}.

local after, most = arg(), number()
local from = after == '' and '-' or '(' .. after
local out = {}
for _, key in ipairs(call('ZRANGEBYLEX', base .. 'setting:keys', from, '+', 'LIMIT', 0, most)) do
  local s = setting(key)
  if s then
    local n = #out
    out[n + 1], out[n + 2], out[n + 3], out[n + 4], out[n + 5] = key, s.value, s.revision, s.at, s.by
  end
end
return out
