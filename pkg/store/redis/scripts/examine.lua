-- examine: compares jobs with their places in the indexes. What it finds wrong it
-- puts right when it is told to; each item on its own, so that it may be repeated.
--
-- ARGV  2  1 to repair
--       3  what the items are: c nothing, for the counts of running jobs, j jobs, b payloads kept aside, r results, p lanes that have jobs,
--          else the name of an index, whose members they are
--       4  number of items; then the items
--
-- Answers {defect, where, items, …}.

local repair, kind = arg() == '1', arg()

local found, order = {}, {}
local function tell(defect, where)
  local key = defect .. '\0' .. where
  if not found[key] then
    found[key] = { defect, where, 0 }
    order[#order + 1] = found[key]
  end
  found[key][3] = found[key][3] + 1
end

local lane = string.match(kind, '^p:(.*)$')
local rank = string.match(kind, '^f:(.*)$')
local where = lane and 'pending jobs of lanes' or rank and 'lanes of ranks' or kind

-- read is a job, nil when there is none, and whether its value can be read.
local function read(id)
  local v = call('GETRANGE', base .. 'j:' .. id, 0, LONGEST_HEAD)
  if v == '' then return nil, true end
  local ok, j = pcall(parse, id, v)
  return ok and j or nil, ok
end

local function finished(j) return time_of(string.sub(j.value, 89, 96)) end
local function live(j) return j.state == PENDING or j.state == RUNNING end
local function archived(j) return j.state == COMPLETE or j.state == CANCELLED end

-- stands wants a member in an index, at a score when there is one to want.
local function stands(name, told, member, score, fallback)
  local at = call('ZSCORE', base .. name, member)
  if at and (not score or tonumber(at) == score) then return end
  tell(at and 'misplaced' or 'missing', told)
  if repair then
    put(name, score or fallback or 0, member)
    if told == 'pending jobs of lanes' then touched[string.sub(name, 3)] = true end
  end
end

-- The lease of a job that is in no index of leases gets so long, unless its
-- attempt ends before: its worker may be well, and extends it then.
local GRACE = 30000000

local relabelling = call('HEXISTS', KEYS[1], 'relabel') == 1

local function job(id)
  local j, readable = read(id)
  if not readable then return tell('broken', 'jobs that cannot be read') end
  if not j then return end
  if has(j.flags, ASIDE) and call('EXISTS', base .. 'b:' .. id) == 0 then tell('broken', 'jobs without their payload') end
  if live(j) then
    if has(j.flags, LANED) ~= laned(j.task) and not relabelling then
      tell('misplaced', 'jobs in lanes of others')
      if repair then
        if j.state == PENDING then call('ZREM', base .. 'p:' .. lane_of(j), id) end
        touched[lane_of(j)] = true
        j.flags = j.flags + (laned(j.task) and LANED or -LANED)
        call('SETRANGE', base .. 'j:' .. id, 2, string.char(j.flags))
        if j.state == PENDING then
          call('ZADD', base .. 'p:' .. lane_of(j), time_of(j.run), id)
          touched[lane_of(j)] = true
        end
      end
    end
    stands('live', 'live', id)
    if j.unique ~= '' then
      local holder = call('HGET', base .. 'unique', j.unique)
      local other = holder and holder ~= id and read(holder)
      if holder ~= id and not (other and live(other) and other.unique == j.unique) then
        tell('missing', 'unique')
        if repair then call('HSET', base .. 'unique', j.unique, id) end
      end
    end
  end
  if j.state == PENDING then
    stands('p:' .. lane_of(j), 'pending jobs of lanes', id, time_of(j.run))
    if j.debounce ~= '' then stands('debounce', 'debounce', j.debounce .. '\0' .. id) end
  elseif j.state == RUNNING then
    stands('running', 'running', id, nil, math.min(now + GRACE, j.started + j.timeout))
  elseif j.state == DEAD then
    local name = has(j.flags, SHED) and 'shed' or 'dead'
    stands(name, name, id)
    stands('died', 'died', id, finished(j))
  elseif archived(j) then
    stands('archive', 'archive', id)
    stands('archived', 'archived', id, finished(j))
  end
end

-- fits tells of a member of an index whether it belongs there.
local fits = {
  live = live,
  running = function(j) return j.state == RUNNING end,
  workers = function(j) return j.state == RUNNING end,
  archive = archived,
  archived = archived,
  dead = function(j) return j.state == DEAD and not has(j.flags, SHED) end,
  shed = function(j) return j.state == DEAD and has(j.flags, SHED) end,
  died = function(j) return j.state == DEAD end,
  b = function(j) return has(j.flags, ASIDE) end,
  r = function() return true end,
}

local function take_out(member)
  if kind == 'b' or kind == 'r' then
    call('DEL', base .. kind .. ':' .. member)
  elseif kind == 'workers' or kind == 'unique' then
    call('HDEL', base .. kind, member)
  else
    call('ZREM', base .. kind, member)
    if lane then touched[lane] = true end
  end
end

-- belongs reports of a member whether it may stay. A job that cannot be read
-- keeps everything.
local function belongs(member)
  if kind == 'lanes' then return call('EXISTS', base .. 'p:' .. member) == 1 end
  if kind == 'ranks' then return call('EXISTS', base .. 'f:' .. member) == 1 end
  if rank then return string.sub(member, -3) == rank and call('EXISTS', base .. 'p:' .. member) == 1 end
  local id, key = member, nil
  if kind == 'unique' then id, key = call('HGET', base .. 'unique', member), member end
  if kind == 'debounce' then key, id = string.match(member, '^(.*)%z([^%z]*)$') end
  if not id then return kind == 'unique' end -- gone meanwhile
  local j, readable = read(id)
  if not readable then return true end
  if not j then return false end
  if kind == 'unique' then return live(j) and j.unique == key end
  if kind == 'debounce' then return j.state == PENDING and j.debounce == key end
  if lane then return j.state == PENDING and lane_of(j) == lane end
  return fits[kind](j)
end

-- A member that was taken away since it was listed is not wrong.
local function there(member)
  if kind == 'b' or kind == 'r' then return call('EXISTS', base .. kind .. ':' .. member) == 1 end
  if kind == 'workers' or kind == 'unique' then return call('HEXISTS', base .. kind, member) == 1 end
  return call('ZSCORE', base .. kind, member) ~= false
end

local function entry(member)
  if not there(member) or belongs(member) then return end
  tell('stray', where)
  if repair then take_out(member) end
end

-- lane_indexes wants a lane that has jobs to be found by its name and its rank.
local function lane_indexes(name)
  local front = call('ZRANGE', base .. 'p:' .. name, 0, 0, 'WITHSCORES')
  if not front[1] then return end
  local r = string.sub(name, -3)
  stands('lanes', 'lanes', name)
  stands('f:' .. r, 'lanes of ranks', name, tonumber(front[2]))
  stands('ranks', 'ranks', r, tonumber(r))
end

-- running_counts wants the counts of queues and tasks to be those of the running jobs.
local function running_counts()
  if not call('HGET', KEYS[1], 'counted') then return end
  local counted, fields, flat = {}, {}, call('HGETALL', base .. 'counts')
  for _, id in ipairs(call('ZRANGE', base .. 'running', 0, -1)) do
    local j = read(id)
    if j and j.state == RUNNING then
      for _, field in ipairs({ 'q' .. j.queue, 't' .. j.task }) do counted[field] = (counted[field] or 0) + 1 end
    end
  end
  for i = 1, #flat, 2 do
    local field = flat[i]
    if tonumber(flat[i + 1]) ~= (counted[field] or 0) then fields[#fields + 1] = field end
    counted[field .. '\0seen'] = true
  end
  for field, n in pairs(counted) do
    if n ~= true and not counted[field .. '\0seen'] then fields[#fields + 1] = field end
  end
  for _, field in ipairs(fields) do
    tell('miscounted', 'running jobs of queues and tasks')
    if repair then
      if counted[field] then call('HSET', base .. 'counts', field, counted[field]) else call('HDEL', base .. 'counts', field) end
    end
  end
end

local check = kind == 'c' and running_counts or kind == 'j' and job or kind == 'p' and lane_indexes or entry
for _ = 1, number() do check(arg()) end
write_indexes()
local out = {}
for _, f in ipairs(order) do out[#out + 1], out[#out + 2], out[#out + 3] = f[1], f[2], f[3] end
return out
