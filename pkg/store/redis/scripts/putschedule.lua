-- putschedule: creates or replaces a schedule and writes the audit record.
--
-- ARGV  2  default revision and
--       3  term of the installation
--       4  name
--       5  revision that it must have, 0: any
--       6  1 to leave the slot at which it stands
--       7  cron, 8 time zone, 9 job, 10 1 if paused, 11 next slot or 0, 12 by whom
--      13  the record from its revision on
--
-- Answers {} when it has another revision, or fired at the slot or a later one
-- meanwhile, else the values of FORM.

local default, term, name, must, keep = arg(), arg(), arg(), number(), arg() == '1'
local cron, zone, job, paused, next, by, rest = arg(), arg(), arg(), arg(), number(), arg(), arg()

local s = standing(name)
if must ~= 0 and (not s or s.revision ~= must) then return {} end
if s and not keep and next ~= 0 and next <= s.last then return {} end

enter(default, term)
local at = base .. 's:' .. name
local revision = math.max(now, s and s.revision + 1 or 0)
call('HSET', at, 'cron', cron, 'zone', zone, 'job', job, 'paused', paused, 'revision', digits(revision), 'updated_at', digits(now), 'updated_by', by)
if not s then call('HSET', at, 'last_slot', 0, 'last_at', 0) end
local due = next
if keep and s then
  due = math.max(s.next, s.retry)
else
  if keep then due = 0 end
  call('HSET', at, 'next', digits(due), 'refused', 0, 'reason', '', 'tries', 0, 'retry', 0)
end
set_due(name, paused == '1' and 0 or due)
call('ZADD', base .. 'schedules', 0, name)
call('HSET', KEYS[1], 'used', 1)
append(now, rest)
return call('HMGET', at, unpack(FORM))
