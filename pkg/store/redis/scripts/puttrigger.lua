-- puttrigger: creates, replaces or removes a trigger and writes the audit record.
-- t:<name> has the value; triggers has the names, streamed those that read a stream.
--
-- ARGV  2  default revision and
--       3  term of the installation
--       4  name
--       5  value, empty to remove it; the time is put before it
--       6  1 if it reads a stream
--       7  the record from its revision on
--
-- Answers 1, or 0 when there was none to remove.

local default, term, name, value, streamed, rest = arg(), arg(), arg(), arg(), arg() == '1', arg()
if value == '' then
  if call('ZREM', base .. 'triggers', name) == 0 then return 0 end
  call('DEL', base .. 't:' .. name)
else
  enter(default, term)
  call('HSET', KEYS[1], 'used', 1)
  call('ZADD', base .. 'triggers', 0, name)
  call('SET', base .. 't:' .. name, struct.pack('<i8', now) .. value)
end
if streamed then
  call('ZADD', base .. 'streamed', 0, name)
else
  call('ZREM', base .. 'streamed', name)
end
append(now, rest)
return 1
