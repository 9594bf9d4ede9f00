-- tokens: stores new tokens.
--
-- ARGV  2  1 for the first tokens of an installation: nothing is done when any was ever stored
--       3  number of the audit record, or empty: none
--       4  its namespace, 5 the record from its revision on
--       6  how long exchanged tokens have been expired that are deleted, in µs, 7 at most so many
--       8  the token on whose behalf it is, empty: nobody's
--       9  number of tokens; then for each: id, namespace, value, when it expires if another was exchanged for it, else 0
--
-- Answers 1 when done, 0 when not, -1 when an id is taken, -2 when the token on whose behalf it is has ended.

local first, audit, ns, rest = arg() == '1', arg(), arg(), arg()
local since, most, by = number(), number(), arg()
if by ~= '' and (call('EXISTS', base .. 'token:' .. by) == 0 or call('HEXISTS', base .. 'revoked', by) == 1) then return -2 end
local new = {}
for i = 1, number() do
  new[i] = { id = arg(), ns = arg(), value = arg(), exchanged = number() }
  if call('EXISTS', base .. 'token:' .. new[i].id) == 1 then return -1 end
end
if first and call('HGET', KEYS[1], 'bootstrapped') then return 0 end

call('HSET', KEYS[1], 'bootstrapped', 1)
for _, t in ipairs(new) do
  call('SET', base .. 'token:' .. t.id, t.value)
  call('ZADD', base .. 'tokens:' .. t.ns, 0, t.id)
  publish('token:' .. t.id)
  if t.exchanged > 0 then
    local old = base .. 'exchanged:' .. t.ns
    for _, id in ipairs(call('ZRANGEBYSCORE', old, '-inf', '(' .. digits(now - since), 'LIMIT', 0, most)) do
      call('DEL', base .. 'token:' .. id)
      call('HDEL', base .. 'revoked', id)
      call('HDEL', base .. 'touched', id)
      call('ZREM', base .. 'tokens:' .. t.ns, id)
      call('ZREM', old, id)
      call('ZREM', base .. 'changes', 'token:' .. id) -- its expiry is known wherever it is cached
    end
    call('ZADD', old, t.exchanged, t.id)
  end
end
if audit ~= '' then
  if ns == '' then
    append(now, rest)
  else
    call('HSET', base .. 'outbox', audit, struct.pack('<i8Bc0', now, #ns, ns) .. rest)
  end
end
return 1
