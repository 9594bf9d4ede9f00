-- record: writes one record into a trail.
--
-- ARGV  2  a number that no other record has, when this one may come twice, else empty
--       3  its time, or 0 for now
--       4  the record from its revision on
--
-- Answers 1 when it was not there yet.

local id, at, rest = arg(), number(), arg()
if at == 0 then at = now end
if id ~= '' then
  if call('ZADD', base .. 'posted', 'NX', now, id) == 0 then return 0 end
  call('ZREMRANGEBYSCORE', base .. 'posted', '-inf', '(' .. digits(now - 3600000000))
end
append(at, rest)
return 1
