-- erase: deletes some rows of a namespace: schedules and triggers first, which make
-- jobs, then live jobs, history and the trail. When nothing of these is left it deletes everything else at once.
--
-- ARGV  2  at most so many, no more than 1000
--
-- Answers {1 when more is left, else 0; 1 when anything was there}.

local left = number()
local most, there = left, call('EXISTS', KEYS[1], base .. 'trail') > 0
have_counts()
local jobs, keys, forgotten, holders = {}, {}, {}, {}

local function row(id)
  keys[#keys + 1], keys[#keys + 2], keys[#keys + 3] = base .. 'j:' .. id, base .. 'b:' .. id, base .. 'r:' .. id
  left = left - 1
end

local function some(index) return left > 0 and call('ZRANGE', base .. index, 0, left - 1) or {} end

for _, made in ipairs({ { 'schedules', 's:' }, { 'triggers', 't:' } }) do
  for _, name in ipairs(some(made[1])) do
    drop(made[1], name)
    keys[#keys + 1] = base .. made[2] .. name
    left = left - 1
  end
end
for _, id in ipairs(some('live')) do
  local j = head(id)
  if j and j.state == PENDING then
    stop_waiting(j)
  else
    drop('running', id)
    if j and j.state == RUNNING then count_running(j, -1) end
    forgotten[#forgotten + 1] = id
  end
  if j and j.unique ~= '' and call('HGET', base .. 'unique', j.unique) == id then holders[#holders + 1] = j.unique end
  drop('live', id)
  row(id)
end
for _, index in ipairs({ 'archive', 'dead', 'shed' }) do
  for _, id in ipairs(some(index)) do
    drop(index, id)
    drop(index == 'archive' and 'archived' or 'died', id)
    row(id)
  end
end

if #forgotten > 0 then call('HDEL', base .. 'workers', unpack(forgotten)) end
if #holders > 0 then call('HDEL', base .. 'unique', unpack(holders)) end
write_indexes()
if #keys > 0 then call('UNLINK', unpack(keys)) end
if left > 0 then
  left = left - call('ZREMRANGEBYRANK', base .. 'trail', 0, left - 1)
end
if left == 0 then return { 1, 1 } end
local rest = {}
for i, name in ipairs({ 'ns', 'settings', 'overrides', 'counts', 'setting:keys', 'setting:notes', 'trail', 'trail:at', 'posted', 'live', 'running', 'workers', 'unique',
  'debounce', 'archive', 'archived', 'dead', 'died', 'shed', 'lanes', 'ranks', 'schedules', 'due', 'triggers', 'streamed', 'signatures' }) do rest[i] = base .. name end
call('UNLINK', unpack(rest))
return { 0, (there or left < most) and 1 or 0 }
