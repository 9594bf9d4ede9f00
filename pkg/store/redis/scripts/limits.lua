-- limits: what overrides leave of queues and tasks. A namespace without any that
-- holds something has none.

local function queue_of(lane) return string.match(lane, '^([^%z]*)%z') end
local function task_of(lane) return string.match(lane, '^[^%z]*%z(.-)%z?%d%d%d$') end

-- limits_of reads {q = {queue = {room, hold}}, t = {task = …}}, nil when nothing is held.
local function limits_of()
  local flat = call('HGETALL', base .. 'overrides')
  local out
  for i = 1, #flat, 2 do
    local kind, name = string.match(flat[i], '^(%l+):(.*)$')
    local most, pause = string.match(flat[i + 1], '^(%-?%d*);(%d)')
    local letter = string.sub(kind, 1, 1)
    local limit
    if pause == '1' then
      limit = { room = 0, hold = 'paused_' .. kind .. ':' .. name }
    elseif most ~= '' then
      local running = tonumber(call('HGET', base .. 'counts', letter .. name) or 0)
      limit = { room = math.max(0, tonumber(most) - running), hold = kind .. ':' .. name }
    end
    if limit then
      out = out or { q = {}, t = {} }
      out[letter][name] = limit
    end
  end
  return out
end

local function copy(limits)
  local out = { q = {}, t = {} }
  for letter, all in pairs(limits) do
    for name, l in pairs(all) do out[letter][name] = { room = l.room, hold = l.hold } end
  end
  return out
end

local function room_of(limits, queue, task)
  local q, t = limits.q[queue], limits.t[task]
  return math.min(q and q.room or math.huge, t and t.room or math.huge)
end

local function spend(limits, queue, task)
  local q, t = limits.q[queue], limits.t[task]
  if q then q.room = q.room - 1 end
  if t then t.room = t.room - 1 end
end

-- open reports whether more jobs of a lane may run.
local function open(limits, lane) return room_of(limits, queue_of(lane), task_of(lane)) > 0 end

-- holds_of names what holds a whole lane.
local function holds_of(limits, lane)
  local out = {}
  for _, l in pairs({ limits.q[queue_of(lane)] or false, limits.t[task_of(lane)] or false }) do
    if l and l.room <= 0 then out[#out + 1] = l.hold end
  end
  return out
end
