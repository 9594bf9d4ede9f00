-- ahead: counts the due jobs of a pending job's queue that come before it. It
-- writes nothing.
--
-- ARGV  2  its id
--
-- Answers how many, or -1 when there is no such job.

local TIED = 1000 -- jobs of one instant that are compared by id

local id = arg()
local me = head(id)
if not me or me.state ~= PENDING then return -1 end
local n, run = 0, time_of(me.run)
for _, lane in ipairs(call('ZRANGEBYLEX', base .. 'lanes', '[' .. me.queue .. '\0', '(' .. me.queue .. '\1')) do
  local rank = tonumber(string.sub(lane, -3))
  local key = base .. 'p:' .. lane
  if rank < me.rank or rank == me.rank and run > now then
    n = n + call('ZCOUNT', key, '-inf', digits(now))
  elseif rank == me.rank then
    n = n + call('ZCOUNT', key, '-inf', '(' .. digits(run))
    for _, other in ipairs(call('ZRANGEBYSCORE', key, digits(run), digits(run), 'LIMIT', 0, TIED)) do
      if other < id then n = n + 1 end
    end
  end
end
return n
