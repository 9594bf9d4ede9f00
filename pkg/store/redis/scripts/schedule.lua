-- schedule: where schedules stand. s:<name> is a hash; schedules has the names,
-- due those that are to be looked at, by when.

local FORM = { 'cron', 'zone', 'job', 'paused', 'revision', 'next', 'last_slot', 'last_at', 'refused', 'reason', 'tries', 'retry',
  'updated_at', 'updated_by' }

local function standing(name)
  local m = call('HMGET', base .. 's:' .. name, 'revision', 'paused', 'next', 'refused', 'retry', 'last_slot')
  if not m[1] then return nil end
  return { revision = tonumber(m[1]), paused = m[2] == '1', next = tonumber(m[3]), refused = tonumber(m[4]), retry = tonumber(m[5]),
    last = tonumber(m[6] or 0) }
end

-- set_due notes when to look at a schedule again.
local function set_due(name, at)
  if at > 0 then
    call('ZADD', base .. 'due', digits(at), name)
  else
    call('ZREM', base .. 'due', name)
  end
end

-- move_on takes a schedule to its next slot.
local function move_on(name, slot, next)
  call('HSET', base .. 's:' .. name, 'next', digits(next), 'last_slot', digits(slot), 'last_at', digits(now),
    'refused', 0, 'reason', '', 'tries', 0, 'retry', 0)
  set_due(name, next)
end
