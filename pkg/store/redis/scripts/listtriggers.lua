-- listtriggers: reads triggers by name.
--
-- ARGV  2  triggers or streamed, 3 those after this name, 4 at most so many
--
-- Answers {name, value, …}.

local of, after, limit = arg(), arg(), number()
local out = {}
for _, n in ipairs(call('ZRANGEBYLEX', base .. of, after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, limit)) do
  out[#out + 1] = n
  out[#out + 1] = call('GET', base .. 't:' .. n)
end
return out
