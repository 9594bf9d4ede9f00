-- changes: reads the list of changes.
--
-- ARGV  2  after this number
--       3  at most so many
--
-- Answers {latest number, records waiting in the outbox, object, its number, …}.

local since, limit = number(), number()
for id, text in pairs((function()
  local all, flat = {}, call('HGETALL', base .. 'announced')
  for i = 1, #flat, 2 do all[flat[i]] = flat[i + 1] end
  return all
end)()) do
  local at, change = string.match(text, '^(%d+) (.*)$')
  publish(change)
  if now - tonumber(at) > 60000000 then call('HDEL', base .. 'announced', id) end
end
local latest = tonumber(call('HGET', KEYS[1], 'changes') or 0)
if since > latest then since = 0 end -- an older copy of the store: anything may have changed
local out = { latest, call('HLEN', base .. 'outbox') }
local found = call('ZRANGEBYSCORE', base .. 'changes', '(' .. digits(since), '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
for i = 1, #found, 2 do
  out[#out + 1] = found[i]
  out[#out + 1] = tonumber(found[i + 1])
end
return out
