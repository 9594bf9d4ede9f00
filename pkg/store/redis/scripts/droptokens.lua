-- droptokens: deletes tokens of a namespace and tells of it.
--
-- ARGV  2  namespace
--       3  number of tokens; then their ids
--
-- Answers 1.

local ns = arg()
for _ = 1, number() do
  local id = arg()
  call('DEL', base .. 'token:' .. id)
  call('HDEL', base .. 'revoked', id)
  call('HDEL', base .. 'touched', id)
  call('ZREM', base .. 'tokens:' .. ns, id)
  call('ZREM', base .. 'exchanged:' .. ns, id)
  publish('token:' .. id)
end
return 1
