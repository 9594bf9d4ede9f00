-- queues: tells what queues of a namespace hold. It writes nothing.
--
-- ARGV  2  after this name
--       3  at least so many of those that have pending jobs, if there are
--
-- Answers {now, queue, pending, running, first run_at of a due job or 0, …} in any order.

local after, limit = arg(), number()
local names, all = {}, {}
local function queue(name)
  if not all[name] then
    all[name] = { 0, 0, 0 }
    names[#names + 1] = name
  end
  return all[name]
end
local from, seen, more = '(' .. after .. '\1', {}, true
if after == '' then from = '-' end
while more and #seen < limit do
  local lanes = call('ZRANGEBYLEX', base .. 'lanes', from, '+', 'LIMIT', 0, 500)
  more = #lanes == 500
  for _, lane in ipairs(lanes) do
    local name = string.match(lane, '^([^%z]*)%z')
    if not all[name] then
      if #seen == limit then break end
      seen[#seen + 1] = name
    end
    local q = queue(name)
    q[1] = q[1] + call('ZCARD', base .. 'p:' .. lane)
    local front = tonumber(call('ZSCORE', base .. 'f:' .. string.sub(lane, -3), lane) or 0)
    if front <= now and (q[3] == 0 or front < q[3]) then q[3] = front end
    from = '(' .. lane
  end
end
-- Beyond the last queue that was looked at, nothing is said.
local last = more and seen[#seen] or nil
local function within(name) return name > after and (not last or name <= last) end
local flat = call('HGETALL', base .. 'counts')
for i = 1, #flat, 2 do
  local name = string.match(flat[i], '^q(.*)$')
  if name and within(name) then queue(name)[2] = tonumber(flat[i + 1]) end
end
for _, field in ipairs(call('HKEYS', base .. 'overrides')) do
  local name = string.match(field, '^queue:(.*)$')
  if name and within(name) then queue(name) end
end
local out = { now }
for _, name in ipairs(names) do
  local q = all[name]
  out[#out + 1], out[#out + 2], out[#out + 3], out[#out + 4] = name, q[1], q[2], q[3]
end
return out
