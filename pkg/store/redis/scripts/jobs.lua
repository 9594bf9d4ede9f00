-- jobs: a job's value and its places in the indexes.
--
-- The value of j:<id> is a head of fixed size, the texts with their lengths, and
-- the payload when it is short. Its layout is that of codec.go. What moves with
-- an attempt stands together in bytes 1 to 95 and is written in place.

local PENDING, RUNNING, COMPLETE, DEAD, CANCELLED = 0, 1, 2, 3, 4
local CANCELLING, SHED, ASIDE, LANED = 1, 2, 4, 8 -- flags
local HEAD = '<BBBBI4i8c32c32c8i8BBBBI4I4i8i8i8i8i8i8c16Bc0Bc0Bc0Bc0'
local MOVING = '<BBBI4i8c32c32c8i8'
local TEXTS = '<Bc0Bc0Bc0Bc0I2c0I2c0I4c0I2c0'
local TEXTS_AT = 173     -- where the texts begin
local LONGEST_HEAD = 1195 -- the last byte that HEAD may reach
local NONE = string.rep('\0', 32)

local function has(flags, flag) return math.floor(flags / flag) % 2 == 1 end

local function parse(id, v)
  local j = { id = id, value = v }
  local _
  _, j.state, j.flags, j.settled_as, j.attempt, j.started, j.lease, j.settled, j.run, j.finished, j.form, j.rank, _, _,
    j.max_attempts, j.size, j.timeout, j.backoff_base, j.backoff_max, j.created, j.window, j.max_wait, j.fingerprint,
    j.queue, j.task, j.unique, j.debounce = struct.unpack(HEAD, v)
  return j
end

-- head reads a job without its payload, nil when there is none.
local function head(id)
  local v = call('GETRANGE', base .. 'j:' .. id, 0, LONGEST_HEAD)
  if v == '' then return nil end
  return parse(id, v)
end

local function moving(j)
  return struct.pack(MOVING, j.state, j.flags, j.settled_as, j.attempt, j.started, j.lease, j.settled, j.run, j.finished)
end

local function time_of(raw) return (struct.unpack('<i8', raw)) end
local function raw_time(us) return struct.pack('<i8', us) end

-- bare cuts the payload off a whole value.
local function bare(v)
  local flags, size = string.byte(v, 3), (struct.unpack('<I4', v, 105))
  if has(flags, ASIDE) then return v end
  return string.sub(v, 1, #v - size)
end

-- with_error gives a whole value another error text.
local function with_error(v, text)
  local queue, task, unique, debounce, origin, by, metadata, _, rest = struct.unpack(TEXTS, v, TEXTS_AT)
  return string.sub(v, 1, TEXTS_AT - 1) .. struct.pack(TEXTS, #queue, queue, #task, task, #unique, unique, #debounce, debounce,
    #origin, origin, #by, by, #metadata, metadata, #text, text) .. string.sub(v, rest)
end

-- A lane is the pending jobs of one queue and rank, p:<lane> by run_at and id;
-- those of a task that an override holds are a lane of their own, which the flag
-- of a job says. lanes has the names of those that are not empty. f:<rank> has
-- the lanes of a rank by the run_at of their first job, and ranks the ranks that
-- have lanes.
local function lane_of(j)
  local task = has(j.flags, LANED) and j.task .. '\0' or ''
  return j.queue .. '\0' .. task .. string.format('%03d', j.rank)
end

-- overrides are fields <kind>:<name> with values <max_concurrent or nothing>;<1
-- paused>;… that overrides.go writes on. These are the tasks that one holds.
local laned_tasks
local function laned(task)
  if not laned_tasks then
    laned_tasks = {}
    local flat = call('HGETALL', base .. 'overrides')
    for i = 1, #flat, 2 do
      local name = string.match(flat[i], '^task:(.*)$')
      local most, pause = string.match(flat[i + 1], '^(%-?%d*);(%d)')
      if name and (most ~= '' or pause == '1') then laned_tasks[name] = true end
    end
  end
  return laned_tasks[task] or false
end

-- counts has how many jobs run of each queue, q<queue>, and of each task,
-- t<task>. A namespace that a program without counts has used gets them first.
local tally = {}
local function count_running(j, n)
  for _, field in ipairs({ 'q' .. j.queue, 't' .. j.task }) do tally[field] = (tally[field] or 0) + n end
end
local function have_counts()
  if call('HGET', KEYS[1], 'counted') then return end
  for _, id in ipairs(call('ZRANGE', base .. 'running', 0, -1)) do
    local j = head(id)
    if j then count_running(j, 1) end
  end
  call('DEL', base .. 'counts')
  call('HSET', KEYS[1], 'counted', 1)
end

-- Changes of indexes are gathered, so that each index is written with one
-- command: plus and minus have members by key, touched the lanes that changed.
local plus, minus, touched = {}, {}, {}

local function put(name, score, id)
  local key = base .. name
  local m = plus[key] or {}
  m[#m + 1], m[#m + 2] = score, id
  plus[key] = m
end

local function drop(name, id)
  local key = base .. name
  local m = minus[key] or {}
  m[#m + 1] = id
  minus[key] = m
end

-- write_indexes writes what was gathered, and with it the indexes of lanes. A
-- script calls it before it reads an index again, and at its end.
local function write_indexes()
  for key, m in pairs(minus) do call('ZREM', key, unpack(m)) end
  for key, m in pairs(plus) do call('ZADD', key, unpack(m)) end
  for lane in pairs(touched) do
    local rank = string.sub(lane, -3)
    local front = call('ZRANGE', base .. 'p:' .. lane, 0, 0, 'WITHSCORES')
    if front[1] then
      call('ZADD', base .. 'lanes', 0, lane)
      call('ZADD', base .. 'f:' .. rank, front[2], lane)
      call('ZADD', base .. 'ranks', rank, rank)
    else
      call('ZREM', base .. 'lanes', lane)
      call('ZREM', base .. 'f:' .. rank, lane)
      if call('EXISTS', base .. 'f:' .. rank) == 0 then call('ZREM', base .. 'ranks', rank) end
    end
  end
  for field, n in pairs(tally) do
    if n ~= 0 and call('HINCRBY', base .. 'counts', field, n) == 0 then call('HDEL', base .. 'counts', field) end
  end
  plus, minus, touched, tally = {}, {}, {}, {}
end

local function start_waiting(j)
  local lane = lane_of(j)
  put('p:' .. lane, time_of(j.run), j.id)
  touched[lane] = true
  if j.debounce ~= '' then put('debounce', 0, j.debounce .. '\0' .. j.id) end
end

local function stop_waiting(j)
  local lane = lane_of(j)
  drop('p:' .. lane, j.id)
  touched[lane] = true
  if j.debounce ~= '' then drop('debounce', j.debounce .. '\0' .. j.id) end
end

-- move takes a live job to a state. The caller has set its attempt, its settled
-- lease and, for a pending one, its run_at. An empty error keeps the present
-- one.
local function move(j, state, text)
  if j.state == RUNNING then
    drop('running', j.id)
    call('HDEL', base .. 'workers', j.id)
    count_running(j, -1)
  else
    stop_waiting(j)
  end
  j.state, j.lease = state, NONE
  if state == PENDING then
    start_waiting(j)
  else
    j.finished = now
    drop('live', j.id)
    local ids, times = 'archive', 'archived'
    if state == DEAD then ids, times = 'dead', 'died' end
    put(ids, 0, j.id)
    put(times, now, j.id)
    if j.unique ~= '' and call('HGET', base .. 'unique', j.unique) == j.id then call('HDEL', base .. 'unique', j.unique) end
  end
  local at = base .. 'j:' .. j.id
  call('SETRANGE', at, 1, moving(j))
  if text ~= '' then call('SET', at, with_error(call('GET', at), text)) end
end
