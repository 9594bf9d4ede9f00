-- register: puts namespaces on the installation's lists.
--
-- ARGV  2  1 to put them among the busy ones, under new numbers
--       3  1 to list their trails
--       4  number of namespaces; then their names
--
-- Answers {default revision, term, number under which the first is among the busy ones, of the second, …}.

local busy, trails = arg() == '1', arg() == '1'
local m = call('HMGET', KEYS[1], 'revision', 'term')
local out = { tonumber(m[1] or 0), tonumber(m[2] or 0) }
for _ = 1, number() do
  local ns = arg()
  call('ZREM', base .. 'erased', ns)
  if ns ~= '' then call('ZADD', base .. 'known', 0, ns) end
  if trails then call('ZADD', base .. 'trails', 'NX', 0, ns) end
  if busy then
    local n = call('HINCRBY', KEYS[1], 'registrations', 1)
    call('ZADD', base .. 'busy', n, ns)
    out[#out + 1] = n
  end
end
return out
