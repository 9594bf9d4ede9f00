-- listschedules: reads schedules, by name or by when they are due.
--
-- ARGV  2  name, list or due
--       3  the name, or list those after it
--       4  at most so many
--
-- Answers {now, when the next one that is not due will be or 0, name, values of FORM, name, …}.

local how, name, limit = arg(), arg(), number()
local names, later = {}, nil
if how == 'name' then
  if call('EXISTS', base .. 's:' .. name) == 1 then names = { name } end
elseif how == 'list' then
  names = call('ZRANGEBYLEX', base .. 'schedules', name == '' and '-' or '(' .. name, '+', 'LIMIT', 0, limit)
else
  names = call('ZRANGEBYSCORE', base .. 'due', '-inf', digits(now), 'LIMIT', 0, limit)
  later = call('ZRANGEBYSCORE', base .. 'due', '(' .. digits(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
end
local out = { now, tonumber(later or 0) }
for _, n in ipairs(names) do
  out[#out + 1] = n
  out[#out + 1] = call('HMGET', base .. 's:' .. n, unpack(FORM))
end
return out
