-- finish: ends what announce began.
--
-- ARGV  2  the number of the change
--       3  the object
--       4  1 if it did change

local id, change, changed = arg(), arg(), arg() == '1'
call('HDEL', base .. 'announced', id)
if changed then publish(change) end
return 1
