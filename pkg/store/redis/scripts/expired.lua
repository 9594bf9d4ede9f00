-- expired: finds attempts of one namespace whose lease has ended. It writes nothing.
--
-- ARGV  2  at most so many
--
-- Answers {now, running jobs, last grant, id, end of the lease, head of the value, …}, oldest first.

local found = call('ZRANGEBYSCORE', base .. 'running', '-inf', digits(now), 'WITHSCORES', 'LIMIT', 0, number())
local out = { now, call('ZCARD', base .. 'running'), tonumber(call('HGET', KEYS[1], 'granted') or 0) }
for i = 1, #found, 2 do
  out[#out + 1] = found[i]
  out[#out + 1] = tonumber(found[i + 1])
  out[#out + 1] = call('GETRANGE', base .. 'j:' .. found[i], 0, LONGEST_HEAD)
end
return out
