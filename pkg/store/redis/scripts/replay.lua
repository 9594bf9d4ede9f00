-- replay: moves dead letters of one namespace back to pending as new jobs, by the
-- rules of package admit, each on its own and in order.
--
-- ARGV  2  field of the quota document
--       3  revision, 4 default revision
--       5  max_pending or empty
--       6  count and 7 letter of the rate, or 0
--       8  by whom
--       9  1 when it counts as an automatic retry
--      10  the record's outcome and 11 its fixed part, or empty: no record
--      12  number of letters; then for each
--            its id, the id of the job that it becomes
--
-- Answers {1} when the namespace is not registered, else {0, now, one of these per letter …}:
--   {0, value}             moved; the value of the new job without its payload
--   {1}                    gone
--   {2, queue, pending, count, letter, tokens, part, filled_at}  refused; the bucket as it was found
--   {3, revision, default revision, 1 if written past the door}  stale
--   {4, id}                a job has its unique key
--   {5, id}                a pending job has its debounce key
--   {6}                    its value cannot be read, or the new id is taken

local field, revision, default, max_pending = arg(), number(), number(), optional()
local count, unit, by, automatic = number(), number(), arg(), arg() == '1'
local outcome, fixed = arg(), arg()
if not call('HGET', KEYS[1], 'known') then return { 1 } end

local quota = in_force(field)
local bucket, bucket_changed = read_bucket(), false
local pending = call('ZCARD', base .. 'live') - call('ZCARD', base .. 'running')
local seq, moved, seen = 0, {}, {}
local unique, waiting = {}, {} -- ids by key that this script gave them to

-- holder finds the live job with a unique key.
local function holder(key)
  if unique[key] then return unique[key] end
  local id = call('HGET', base .. 'unique', key)
  return id and call('EXISTS', base .. 'j:' .. id) == 1 and id or nil
end

-- gathering finds the pending job with a debounce key.
local function gathering(key)
  if waiting[key] then return waiting[key] end
  local found = call('ZREVRANGEBYLEX', base .. 'debounce', '(' .. key .. '\1', '[' .. key .. '\0', 'LIMIT', 0, 1)[1]
  return found and string.sub(found, #key + 2)
end

local function refused()
  if bucket.at > now then -- the clock stepped back
    bucket.at, bucket_changed = now, true
  end
  local filled = bucket
  if count > 0 then filled = refill(bucket, count, unit) end
  return max_pending and pending + 1 > max_pending or count > 0 and filled.tokens < 1, filled
end

-- revive makes the value of the new job.
local function revive(j, id)
  local old = j.id
  local v = j.value
  local queue, task, uniq, debounce, _, _, metadata, _, rest = struct.unpack(TEXTS, v, TEXTS_AT)
  local at, origin = raw_time(now + seq), 'replay:' .. old
  local retries = string.byte(v, 99)
  if automatic then retries = math.min(255, retries + 1) end
  j.state, j.flags, j.settled_as, j.attempt, j.started = PENDING, (has(j.flags, ASIDE) and ASIDE or 0) + (laned(j.task) and LANED or 0), 0, 0, 0
  j.lease, j.settled, j.run, j.finished = NONE, NONE, at, 0
  j.shed, j.old, j.id = has(string.byte(v, 3), SHED), old, id
  j.value = string.sub(v, 1, 1) .. moving(j) .. string.sub(v, 97, 98) .. string.char(retries) .. string.sub(v, 100, 132) .. at ..
    string.sub(v, 141, TEXTS_AT - 1) .. struct.pack(TEXTS, #queue, queue, #task, task, #uniq, uniq, #debounce, debounce,
    #origin, origin, #by, by, #metadata, metadata, 0, '') .. string.sub(v, rest)
  seq = seq + 1
end

local function decide(old, id)
  local v = not seen[old] and call('GET', base .. 'j:' .. old)
  if not v then return { 1 } end
  local ok, j = pcall(parse, old, v)
  if not ok then return { 6 } end
  if j.state ~= DEAD then return { 1 } end
  if quota.past or revision ~= quota.revision or default ~= quota.default then
    return { 3, quota.revision, quota.fallback, quota.past and 1 or 0 }
  end
  local over, filled = refused()
  if over then
    return { 2, j.queue, pending, bucket.count, bucket.unit, bucket.tokens, bucket.part, bucket.at }
  end
  local held = j.unique ~= '' and holder(j.unique)
  if held then return { 4, held } end
  held = j.debounce ~= '' and gathering(j.debounce)
  if held then return { 5, held } end
  if call('EXISTS', base .. 'j:' .. id) == 1 then return { 6 } end
  if count > 0 then
    filled.tokens = filled.tokens - 1
    bucket, bucket_changed = filled, true
  end
  j.body = has(j.flags, ASIDE) and call('EXISTS', base .. 'b:' .. old) == 1
  revive(j, id)
  seen[old] = true
  pending = pending + 1
  if j.unique ~= '' then unique[j.unique] = id end
  if j.debounce ~= '' then waiting[j.debounce] = id end
  moved[#moved + 1] = j
  return { 0, bare(j.value) }
end

local out = { 0, now }
for i = 1, number() do
  local old = arg()
  out[i + 2] = decide(old, arg())
end

-- From here on it writes.
if bucket_changed then save_bucket(bucket) end
local values, gone, keys = {}, {}, {}
for _, j in ipairs(moved) do
  values[#values + 1], values[#values + 2] = base .. 'j:' .. j.id, j.value
  gone[#gone + 1] = base .. 'j:' .. j.old
  drop(j.shed and 'shed' or 'dead', j.old)
  drop('died', j.old)
  put('live', 0, j.id)
  start_waiting(j)
  if j.unique ~= '' then keys[#keys + 1], keys[#keys + 2] = j.unique, j.id end
  if j.body then call('RENAME', base .. 'b:' .. j.old, base .. 'b:' .. j.id) end
end
if #values > 0 then
  call('MSET', unpack(values))
  call('DEL', unpack(gone))
end
if #keys > 0 then call('HSET', base .. 'unique', unpack(keys)) end
write_indexes()
if #moved > 0 and outcome ~= '' then append_count(outcome, 'moved', #moved, fixed) end
return out
