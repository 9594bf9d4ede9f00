-- revoke: ends a token of a namespace.
--
-- ARGV  2  id
--       3  namespace
--       4  number of the audit record, 5 its namespace, 6 the record from its revision on
--
-- Answers 1 when done, 0 when it was revoked before, -1 when there is none.

local id, owner, audit, ns, rest = arg(), arg(), arg(), arg(), arg()
if not call('ZSCORE', base .. 'tokens:' .. owner, id) then return -1 end
if call('HEXISTS', base .. 'revoked', id) == 1 then return 0 end
call('HSET', base .. 'revoked', id, now)
publish('token:' .. id)
if ns == '' then
  append(now, rest)
else
  call('HSET', base .. 'outbox', audit, struct.pack('<i8Bc0', now, #ns, ns) .. rest)
end
return 1
