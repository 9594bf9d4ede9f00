-- turn: applies settlements of one namespace, then serves wants of it.
--
-- ARGV  2  field of the quota document
--       3  number under which the namespace was put among the busy ones for this; else empty
--       4  number of settlements; then for each
--            id, lease (32 bytes, or empty), 1 complete | 2 fail | 3 dead | 4 release,
--            error, retry delay in µs or empty, result, a random number in [0, 1)
--       n  number of wants; then for each
--            revision, default revision, max, bound in bytes or 0, length of the lease, worker,
--            max_running or empty, a secret, number of queues, queue …
--
-- Answers {1} when the namespace is not registered, {2} when it must be put among
-- the busy ones first, so that an ended lease is found; else {0, now, settled …, grant …}:
--   {0 missing | 1 refused | 2 accepted | 3 accepted before, state, queue, task, attempt}
--   {1, revision, default revision, 1 if written past the door} stale, or {0, {hold …}, next run_at or 0, id, value, payload kept aside, lease, its end, …};
--   a hold is its kind, a colon and its name

local field, registration = arg(), optional()
local settlements, wants = {}, {}
for i = 1, number() do
  settlements[i] = { id = arg(), lease = arg(), outcome = number(), text = arg(), retry = optional(), result = arg(), jitter = number() }
end
for i = 1, number() do
  local w = { revision = number(), default = number(), max = number(), bytes = number(), lease_for = number(), worker = arg(),
    cap = optional(), secret = arg() }
  local n = number()
  if n > 0 then
    w.queues = {}
    local seen = {}
    for _ = 1, n do
      local q = arg()
      if not seen[q] then w.queues[#w.queues + 1] = q end
      seen[q] = true
    end
  end
  wants[i] = w
end

local record = call('HMGET', KEYS[1], 'known', 'busy', 'cleared', 'granted')
if not record[1] then return { 1 } end
if #wants > 0 and not record[2] and call('EXISTS', base .. 'live') == 1 then
  if not registration or registration <= tonumber(record[3] or 0) then return { 2 } end
  call('HSET', KEYS[1], 'busy', registration)
end

-- after decides where an ended attempt takes a job, by the rules of job.After:
-- state, attempt, error, and the delay or nil when it keeps its turn.
local function after(j, s)
  if s.outcome == 1 then return COMPLETE, j.attempt, '' end
  if has(j.flags, CANCELLING) then return CANCELLED, j.attempt, s.text end
  if s.outcome == 4 then return PENDING, math.max(0, j.attempt - 1), '', s.retry end
  if s.outcome == 3 or j.attempt >= j.max_attempts then return DEAD, j.attempt, s.text end
  if s.retry then return PENDING, j.attempt, s.text, s.retry end
  local d, i = j.backoff_base, 1
  while i < j.attempt and d < j.backoff_max do d, i = d * 2, i + 1 end
  d = math.min(d, j.backoff_max)
  return PENDING, j.attempt, s.text, math.floor(d / 2 + s.jitter * (d - d / 2))
end

have_counts()
local function settle(s)
  local j = head(s.id)
  if not j then return { 0, 0, '', '', 0 } end
  local answer = { 1, j.state, j.queue, j.task, j.attempt }
  if s.lease == '' then return answer end
  if j.state ~= RUNNING or j.lease ~= s.lease then
    if j.settled == s.lease and j.settled_as == s.outcome then answer[1] = 3 end
    return answer
  end
  local state, attempt, text, delay = after(j, s)
  j.attempt, j.settled, j.settled_as = attempt, s.lease, s.outcome
  if delay then j.run = raw_time(now + delay) end
  if state == COMPLETE and s.result ~= '' then call('SET', base .. 'r:' .. j.id, s.result) end
  move(j, state, text)
  return { 2, state, j.queue, j.task, attempt }
end

-- A heap of lanes by the first job of each that was not picked yet.
local function before(a, b)
  local x, y = a.due[a.at], b.due[b.at]
  if x.run ~= y.run then return x.run < y.run end
  return x.id < y.id
end
local function sink(heap, i)
  while true do
    local least = i
    for c = 2 * i, 2 * i + 1 do
      if heap[c] and before(heap[c], heap[least]) then least = c end
    end
    if least == i then return end
    heap[i], heap[least] = heap[least], heap[i]
    i = least
  end
end

-- fill reads up to n more due jobs of a lane; false when there are none.
local function fill(l, n)
  local r = call('ZRANGEBYSCORE', base .. 'p:' .. l.name, '-inf', digits(now), 'WITHSCORES', 'LIMIT', l.read, n)
  l.due, l.at, l.read = {}, 1, l.read + #r / 2
  for i = 1, #r, 2 do l.due[#l.due + 1] = { id = r[i], run = tonumber(r[i + 1]), lane = l.name } end
  return #r > 0
end

local TIED = 256 -- lanes whose first jobs are due at one instant, to be ordered by id

-- first_lanes names the lanes of a rank in which the first n due jobs are: those
-- whose first jobs are first, and any that tie with the last of them.
local function first_lanes(rank, n)
  local fronts = base .. 'f:' .. rank
  local found = call('ZRANGEBYSCORE', fronts, '-inf', digits(now), 'WITHSCORES', 'LIMIT', 0, n)
  local names, there = {}, {}
  for i = 1, #found, 2 do
    names[#names + 1] = found[i]
    there[found[i]] = true
  end
  if #names == n then
    local last = found[#found]
    for _, name in ipairs(call('ZRANGEBYSCORE', fronts, last, last, 'LIMIT', 0, TIED)) do
      if not there[name] then names[#names + 1] = name end
    end
  end
  return names
end

-- pick finds the first n due jobs of some queues, or of all.
local function pick(queues, n)
  local picked = {}
  local ranks, by_rank
  if queues then
    ranks, by_rank = lanes_of(queues)
  else
    ranks = call('ZRANGE', base .. 'ranks', 0, -1)
  end
  for _, rank in ipairs(ranks) do
    local left = n - #picked
    if left <= 0 then break end
    local names = by_rank and by_rank[rank] or first_lanes(rank, left)
    local heap, some = {}, math.floor(left / math.max(1, #names)) + 1
    for _, name in ipairs(names) do
      local l = { name = name, read = 0 }
      if fill(l, some) then heap[#heap + 1] = l end
    end
    for i = math.floor(#heap / 2), 1, -1 do sink(heap, i) end
    while heap[1] and #picked < n do
      local l = heap[1]
      picked[#picked + 1] = l.due[l.at]
      l.at = l.at + 1
      if l.at > #l.due and not fill(l, some) then
        heap[1] = heap[#heap]
        heap[#heap] = nil
      end
      sink(heap, 1)
    end
  end
  return picked
end

-- MOST_PASSED bounds the jobs that a claim passes one by one, which it does only
-- while jobs move between lanes.
local MOST_PASSED = 2000

-- pick_held is pick under the caps of queues and tasks.
local function pick_held(limits, queues, n)
  local picked, passed, moving_lanes = {}, 0, relabelling()
  local left = copy(limits) -- what is picked counts at once
  local ranks, by_rank
  if queues then
    ranks, by_rank = lanes_of(queues)
  else
    ranks = call('ZRANGE', base .. 'ranks', 0, -1)
  end
  for _, rank in ipairs(ranks) do
    if #picked >= n then break end
    local heap, names = {}, {}
    if by_rank then
      for _, name in ipairs(by_rank[rank]) do names[#names + 1] = name end
    else
      names = call('ZRANGEBYSCORE', base .. 'f:' .. rank, '-inf', digits(now))
    end
    for _, name in ipairs(names) do
      if open(left, name) then
        -- The first job of a lane is read when its turn comes: until then its front stands for it.
        local front = tonumber(call('ZSCORE', base .. 'f:' .. rank, name) or 'inf')
        if front <= now then heap[#heap + 1] = { name = name, read = 0, at = 1, due = { { id = '', run = front } }, unread = true } end
      end
    end
    local some = math.floor((n - #picked) / math.max(1, #heap)) + 1
    for i = math.floor(#heap / 2), 1, -1 do sink(heap, i) end
    while heap[1] and #picked < n and passed < MOST_PASSED do
      local l = heap[1]
      local more = open(left, l.name)
      if more and l.unread then
        l.unread, more = false, fill(l, some)
      elseif more then
        local p = l.due[l.at]
        local queue, task = queue_of(l.name), task_of(l.name)
        if moving_lanes and task == '' then
          local j = head(p.id)
          task = j and j.task or ''
        end
        if room_of(left, queue, task) > 0 then
          picked[#picked + 1] = p
          spend(left, queue, task)
        else
          passed = passed + 1
        end
        l.at = l.at + 1
        more = l.at <= #l.due or fill(l, some)
      end
      if not more then
        heap[1] = heap[#heap]
        heap[#heap] = nil
      end
      sink(heap, 1)
    end
  end
  return picked
end

-- take makes a picked job running and adds it to a grant, and its worker to holders.
local function take(w, j, n, out, holders)
  j.state, j.attempt, j.started, j.lease = RUNNING, j.attempt + 1, now, string.sub(redis.sha1hex(w.secret .. n), 1, 32)
  local ends = now + math.min(w.lease_for, j.timeout)
  local bytes = moving(j)
  stop_waiting(j)
  call('SETRANGE', base .. 'j:' .. j.id, 1, bytes)
  put('running', ends, j.id)
  count_running(j, 1)
  if w.worker ~= '' then holders[#holders + 1], holders[#holders + 2] = j.id, w.worker end
  out[#out + 1] = j.id
  out[#out + 1] = string.sub(j.value, 1, 1) .. bytes .. string.sub(j.value, 97)
  out[#out + 1] = has(j.flags, ASIDE) and call('GET', base .. 'b:' .. j.id) or ''
  out[#out + 1] = j.lease
  out[#out + 1] = ends
end

local limits -- read after the settlements

-- held names what keeps due jobs that are left in some queues, or in all.
local function held(queues, capped)
  local found, out = {}, {}
  local function add(hold)
    if not found[hold] then out[#out + 1] = hold end
    found[hold] = true
  end
  local function look(lane)
    local holds = limits and holds_of(limits, lane) or {}
    for _, h in ipairs(holds) do add(h) end
    if #holds == 0 and capped then add('max_running:') end
  end
  local ranks, by_rank
  if queues then ranks, by_rank = lanes_of(queues) else ranks = call('ZRANGE', base .. 'ranks', 0, -1) end
  for _, rank in ipairs(ranks) do
    local fronts = base .. 'f:' .. rank
    if not by_rank and not limits then
      if call('ZCOUNT', fronts, '-inf', digits(now)) > 0 then look('') end
    elseif not by_rank then
      for _, lane in ipairs(call('ZRANGEBYSCORE', fronts, '-inf', digits(now))) do look(lane) end
    else
      for _, lane in ipairs(by_rank[rank]) do
        local front = call('ZSCORE', fronts, lane)
        if front and tonumber(front) <= now then look(lane) end
      end
    end
    if capped and not limits and #out > 0 then break end
  end
  return out
end

local quota
local function grant(w)
  quota = quota or in_force(field)
  if quota.past or w.revision ~= quota.revision or w.default ~= quota.default then return { 1, quota.revision, quota.fallback, quota.past and 1 or 0 } end
  local room, capped = w.max, false
  if w.cap then
    local free = math.max(0, w.cap - call('ZCARD', base .. 'running'))
    if free < room then room, capped = free, true end
  end
  local picked
  if limits then picked = pick_held(limits, w.queues, room) else picked = pick(w.queues, room) end
  local out = { 0, {}, 0 }
  local bytes, taken, full, holders = 0, 0, false, {}
  for i = 1, math.min(#picked, room), 50 do
    local some, keys = {}, {}
    for k = i, math.min(i + 49, #picked, room) do
      some[#some + 1], keys[#keys + 1] = picked[k], base .. 'j:' .. picked[k].id
    end
    for k, v in ipairs(call('MGET', unpack(keys))) do
      local p = some[k]
      if v then
        local j = parse(p.id, v)
        bytes = bytes + j.size
        full = full or w.bytes > 0 and bytes > w.bytes and taken > 0
        if not full then
          taken = taken + 1
          take(w, j, taken, out, holders)
          if limits then spend(limits, j.queue, j.task) end
        end
      else -- an index entry without its job
        drop('p:' .. p.lane, p.id)
        drop('live', p.id)
        touched[p.lane] = true
      end
    end
    if full then break end
  end
  write_indexes()
  if #holders > 0 then call('HSET', base .. 'workers', unpack(holders)) end
  if taken < w.max and not full and (limits or capped) then out[2] = held(w.queues, capped and taken == room) end
  if taken == 0 then out[3] = next_at(w.queues, limits and function(lane) return open(limits, lane) end) or 0 end
  if taken > 0 and now - tonumber(record[4] or 0) > 10000000 then
    record[4] = digits(now)
    call('HSET', KEYS[1], 'granted', record[4])
  end
  return out
end

local out = { 0, now }
for _, s in ipairs(settlements) do out[#out + 1] = settle(s) end
write_indexes()
if #wants > 0 then
  if relabelling() then relabel(RELABEL_BATCH) end
  limits = limits_of()
end
for _, w in ipairs(wants) do out[#out + 1] = grant(w) end
return out
