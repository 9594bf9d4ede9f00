-- signature: remembers a signature until a time.
--
-- ARGV  2  the signature, 3 the time
--
-- Answers 1 when it was new.

local signature, till = arg(), arg()
call('ZREMRANGEBYSCORE', base .. 'signatures', '-inf', '(' .. digits(now))
return call('ZADD', base .. 'signatures', 'NX', till, signature)
