-- format: makes an empty store one of this program's format, or tells the format of a store.
--
-- ARGV  2  format to begin with, or 0 to only look
--
-- Answers {format, oldest format that a program must know to use the store}; 0 for none.

local new = number()
local m = call('HMGET', KEYS[1], 'format', 'oldest')
if not m[1] and new > 0 then
  call('HSET', KEYS[1], 'format', new, 'oldest', new)
  return { new, new }
end
return { tonumber(m[1] or 0), tonumber(m[2] or 0) }
