-- trimtrail: deletes the oldest records of one trail.
--
-- ARGV  2  term
--       3  time before which they were written
--       4  at most so many
--
-- Answers {1} for an old term, else {0, deleted, 1 if more are left, time of the oldest that is left or empty}.

local term, before, limit = number(), arg(), number()
if term < tonumber(call('HGET', KEYS[1], 'term') or 0) then return { 1 } end
local found = call('ZRANGEBYSCORE', base .. 'trail:at', '-inf', '(' .. before, 'LIMIT', 0, limit)
for _, n in ipairs(found) do
  call('ZREM', base .. 'trail:at', n)
  call('ZREMRANGEBYSCORE', base .. 'trail', n, n)
end
local oldest = call('ZRANGE', base .. 'trail:at', 0, 0, 'WITHSCORES')[2]
return { 0, #found, oldest and tonumber(oldest) < tonumber(before) and 1 or 0, oldest or '' }
