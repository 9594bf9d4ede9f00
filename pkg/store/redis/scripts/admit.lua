-- admit: decides enqueue calls of one namespace by the rules of package admit,
-- in order, and writes what was admitted or shed.
--
-- ARGV  2  field of the quota document
--       3  default revision and
--       4  term of the installation, when the namespace is registered by this; else empty
--       5  jobs of the group that scripts before this one made
--       6  number of calls; then for each
--            number of jobs, revision, default revision, max_pending or empty,
--            count and letter of the rate or 0, 1 to shed what is over a limit,
--            the texts of a shed job before and after the pending count, the text for the rate,
--            0, or 1 and of the schedule that it fires: name, revision and slot at which it must stand, slot that is fired, next slot,
--            0, or 1 and the signature that must be unused, and until when it is then remembered
--          and for each of its jobs
--            id, value with run_at as asked for and the delay in place of created, payload kept aside or empty
--
-- Answers {1} when the namespace is not registered, else {0, now, one of these per call …}:
--   {0, entry …}           admitted; an entry is the bytes of created and run_at of a new job,
--                          or {0 none | 1 duplicate | 2 debounced, id, value, worker}
--   {1, limit, pending, entry …}  shed; the limit is 1 depth or 2 rate
--   {2, pending, count, letter, tokens, part, filled_at}  refused; the bucket as it was found
--   {3, revision, default revision, 1 if written past the door}  stale
--   {4, id}                conflict
--   {5, entry …}           repeated; entries are {3 known | 1 duplicate | 0 none, id, value, worker}
--   {6}                    the schedule does not stand at the slot
--   {7}                    the signature was used before

local field = arg()
local default, term = arg(), arg()
local seq = number()
local calls, ids = {}, {}
for c = 1, number() do
  local one = { jobs = {} }
  local jobs = number()
  one.revision, one.default, one.max_pending = number(), number(), optional()
  one.count, one.unit, one.drop = number(), number(), arg() == '1'
  one.before, one.after, one.over_rate = arg(), arg(), arg()
  if arg() == '1' then one.slot = { name = arg(), revision = number(), due = number(), at = number(), next = number() } end
  if arg() == '1' then one.signature = { sum = arg(), till = number() } end
  for k = 1, jobs do
    local id = arg()
    local j = parse(id, arg())
    j.body = arg()
    one.jobs[k] = j
    ids[#ids + 1] = id
  end
  calls[c] = one
end

if not call('HGET', KEYS[1], 'known') and default == '' then return { 1 } end

-- What there is, as this script leaves it. A row is a job with its value; false
-- is a job that does not exist.
local rows, made, changed = {}, {}, {}
for i, v in ipairs(call('MGET', unpack((function()
  local keys = {}
  for k, id in ipairs(ids) do keys[k] = base .. 'j:' .. id end
  return keys
end)()))) do
  rows[ids[i]] = v and parse(ids[i], v)
end

local function row(id)
  if rows[id] == nil then
    local v = call('GET', base .. 'j:' .. id)
    rows[id] = v and parse(id, v)
  end
  return rows[id]
end

local unique, waiting = {}, {} -- ids by key, false for none
local function holder(key)
  if unique[key] == nil then
    local id = call('HGET', base .. 'unique', key)
    unique[key] = id and row(id) and id
  end
  return unique[key] and rows[unique[key]]
end
local function gathering(key)
  if waiting[key] == nil then
    -- A retry may have come back beside a newer job of the key: the newer one gathers.
    local found = call('ZREVRANGEBYLEX', base .. 'debounce', '(' .. key .. '\1', '[' .. key .. '\0', 'LIMIT', 0, 1)[1]
    local id = found and string.sub(found, #key + 2)
    waiting[key] = id and row(id) and id or false
  end
  return waiting[key] and rows[waiting[key]]
end

local function entry(kind, r)
  if not r then return { 0, '', '', '' } end
  local worker = r.state == RUNNING and call('HGET', base .. 'workers', r.id) or ''
  return { kind, r.id, bare(r.value), worker }
end

local quota = in_force(field)
local bucket = read_bucket()
local bucket_changed = false
local pending = call('ZCARD', base .. 'live') - call('ZCARD', base .. 'running')

-- repeated answers a call some of whose ids are known.
local function repeated(c)
  local known, conflict = 0, nil
  for _, j in ipairs(c.jobs) do
    local r = rows[j.id]
    if r and r.fingerprint == j.fingerprint then
      known = known + 1
    elseif r then
      known, conflict = known + 1, j.id
    elseif j.unique == '' then
      conflict = conflict or j.id
    end
  end
  if known == 0 then return nil end
  if conflict then return { 4, conflict } end
  local out = { 5 }
  for _, j in ipairs(c.jobs) do
    if rows[j.id] then
      out[#out + 1] = entry(3, rows[j.id])
    else
      out[#out + 1] = entry(1, holder(j.unique))
    end
  end
  return out
end

-- create gives a new job its times and state. It returns its entry.
local function create(j, created, run, state)
  j.state, j.run, j.created = state, run, created
  local finished = raw_time(state == DEAD and created or 0)
  j.flags = j.flags + (state == DEAD and SHED or laned(j.task) and LANED or 0)
  local flags = j.flags
  local v = j.value
  j.value = string.sub(v, 1, 1) .. string.char(state, flags) .. string.sub(v, 4, 80) .. run .. finished ..
    string.sub(v, 97, 132) .. raw_time(created) .. string.sub(v, 141)
  j.fresh = true
  rows[j.id] = j
  made[#made + 1] = j
  seq = seq + 1
  return raw_time(created) .. run
end

-- run_of is when a job is due that is made at an instant: no sooner than that.
local function run_of(j, at)
  if time_of(j.run) > at then return j.run end
  if j.debounce ~= '' then return raw_time(at + math.min(j.window, j.max_wait)) end
  return raw_time(at + j.created) -- its delay
end

local function shed(c, limit)
  local out = { 1, limit, pending }
  local text = limit == 2 and c.over_rate or c.before .. digits(pending) .. c.after
  for _, j in ipairs(c.jobs) do
    local at = now + seq
    local run = run_of(j, at)
    -- It must block no later enqueue: its keys are gone.
    local queue, task, _, _, origin, by, metadata, _, rest = struct.unpack(TEXTS, j.value, TEXTS_AT)
    j.value = string.sub(j.value, 1, 140) .. string.rep('\0', 16) .. string.sub(j.value, 157, TEXTS_AT - 1) ..
      struct.pack(TEXTS, #queue, queue, #task, task, 0, '', 0, '', #origin, origin, #by, by, #metadata, metadata, #text, text) ..
      string.sub(j.value, rest)
    j.unique, j.debounce = '', ''
    out[#out + 1] = create(j, at, run, DEAD)
  end
  return out
end

-- gather gives a waiting job the payload of a debounced call and moves it.
local function gather(r, j)
  local run = math.min(now + j.window, r.created + j.max_wait)
  local kept = bare(r.value)
  local aside = has(j.flags, ASIDE)
  local flags = r.flags - (has(r.flags, ASIDE) and ASIDE or 0) + (aside and ASIDE or 0)
  local payload = aside and '' or string.sub(j.value, #bare(j.value) + 1)
  r.run, r.flags, r.size, r.form = raw_time(run), flags, j.size, j.form
  r.body, r.rewritten = j.body, true
  r.value = string.sub(kept, 1, 2) .. string.char(flags) .. string.sub(kept, 4, 80) .. r.run .. string.sub(kept, 89, 96) ..
    string.char(j.form) .. string.sub(kept, 98, 104) .. struct.pack('<I4', j.size) .. string.sub(kept, 109) .. payload
  if not r.fresh then changed[r.id] = r end
end

local function admitted(c)
  local out = { 0 }
  local last, last_asked
  for _, j in ipairs(c.jobs) do
    local held = j.unique ~= '' and holder(j.unique)
    local waits = j.debounce ~= '' and gathering(j.debounce)
    if held then
      out[#out + 1] = entry(1, held)
    elseif waits then
      gather(waits, j)
      out[#out + 1] = entry(2, waits)
    else
      local at = now + seq
      local asked, run = j.run, run_of(j, at)
      -- Jobs of one call keep the call's order even when the caller chose one
      -- instant for them and ids that sort otherwise.
      if last and time_of(asked) ~= 0 and asked == last_asked and time_of(last.run) >= time_of(run) then
        run = last.run
        if last.id > j.id then run = raw_time(time_of(run) + 1) end
      end
      out[#out + 1] = create(j, at, run, PENDING)
      last, last_asked = j, asked
      pending = pending + 1
      if j.unique ~= '' then unique[j.unique] = j.id end
      if j.debounce ~= '' then waiting[j.debounce] = j.id end
    end
  end
  return out
end

-- stands reports whether a call's schedule stands at its slot; go_on takes it to the next.
local schedules, fired = {}, {}
local function stands(slot)
  if not slot then return true end
  if schedules[slot.name] == nil then schedules[slot.name] = standing(slot.name) or false end
  local s = schedules[slot.name]
  return s and not s.paused and s.revision == slot.revision and s.next == slot.due
end
local function go_on(slot)
  if not slot then return end
  schedules[slot.name].next = slot.next
  fired[#fired + 1] = slot
end

-- used reports whether a signature is remembered; sign has it remembered.
local signed, signatures = {}, {}
local function used(signature)
  if not signature then return false end
  local till = signed[signature.sum] or tonumber(call('ZSCORE', base .. 'signatures', signature.sum) or '-1')
  return till >= now
end
local function sign(signature)
  if not signature then return end
  signed[signature.sum] = signature.till
  signatures[#signatures + 1] = signature
end

local function decide(c)
  if used(c.signature) then return { 7 } end
  local out = repeated(c)
  if out then return out end
  if not stands(c.slot) then return { 6 } end
  if quota.past or c.revision ~= quota.revision or c.default ~= quota.default then
    return { 3, quota.revision, quota.fallback, quota.past and 1 or 0 }
  end
  if bucket.at > now then -- the clock stepped back
    bucket.at, bucket_changed = now, true
  end
  local jobs, filled, limit = #c.jobs, bucket, nil
  if c.count > 0 then filled = refill(bucket, c.count, c.unit) end
  if c.max_pending and pending + jobs > c.max_pending then
    limit = 1
  elseif c.count > 0 and jobs > filled.tokens then
    limit = 2
  end
  if limit and c.drop then
    go_on(c.slot)
    sign(c.signature)
    return shed(c, limit)
  end
  if limit then return { 2, pending, bucket.count, bucket.unit, bucket.tokens, bucket.part, bucket.at } end
  if c.count > 0 then
    filled.tokens = filled.tokens - jobs
    bucket, bucket_changed = filled, true
  end
  go_on(c.slot)
  sign(c.signature)
  return admitted(c)
end

if default ~= '' then -- what was pushed to every namespace is in force here too
  quota.fallback = math.max(quota.fallback, tonumber(default))
  if not quota.raw then quota.default = quota.fallback end
end
local out = { 0, now }
for i, c in ipairs(calls) do out[i + 2] = decide(c) end

-- From here on it writes.
enter(default, term)
if bucket_changed then save_bucket(bucket) end
if #signatures > 0 then call('ZREMRANGEBYSCORE', base .. 'signatures', '-inf', '(' .. digits(now)) end
for _, s in ipairs(signatures) do call('ZADD', base .. 'signatures', digits(s.till), s.sum) end
for _, slot in ipairs(fired) do move_on(slot.name, slot.at, slot.next) end

local function set_body(j)
  if has(j.flags, ASIDE) then
    call('SET', base .. 'b:' .. j.id, j.body)
  elseif j.rewritten then
    call('DEL', base .. 'b:' .. j.id)
  end
end

local values, keys = {}, {}
for _, j in ipairs(made) do
  values[#values + 1] = base .. 'j:' .. j.id
  values[#values + 1] = j.value
  if j.state == DEAD then
    put('shed', 0, j.id)
    put('died', j.created, j.id)
  else
    put('live', 0, j.id)
    start_waiting(j)
    if j.unique ~= '' then keys[#keys + 1], keys[#keys + 2] = j.unique, j.id end
  end
  set_body(j)
end
if #values > 0 then
  call('HSET', KEYS[1], 'used', 1)
  call('MSET', unpack(values))
end
if #keys > 0 then call('HSET', base .. 'unique', unpack(keys)) end
for id, r in pairs(changed) do
  call('SET', base .. 'j:' .. id, r.value)
  start_waiting(r)
  set_body(r)
end
write_indexes()
return out
