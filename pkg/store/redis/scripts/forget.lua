-- forget: takes namespaces off the installation's lists that were erased and did
-- not register since, and tells which were erased long ago.
--
-- ARGV  2  how long ago that is, in µs
--       3  number of namespaces to forget; then for each: name, when it was erased
--
-- Answers {name, when it was erased, …}, some at a time.

local long = number()
for _ = 1, number() do
  local ns, at = arg(), number()
  if tonumber(call('ZSCORE', base .. 'erased', ns) or -1) == at then
    for _, list in ipairs({ 'known', 'trails', 'busy', 'scheduled', 'streamed', 'erased' }) do call('ZREM', base .. list, ns) end
  end
end
local out, found = {}, call('ZRANGEBYSCORE', base .. 'erased', '-inf', digits(now - long), 'WITHSCORES', 'LIMIT', 0, 500)
for i = 1, #found, 2 do
  out[i], out[i + 1] = found[i], tonumber(found[i + 1])
end
return out
