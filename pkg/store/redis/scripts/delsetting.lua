-- delsetting: removes a setting and writes the audit record.
--
-- ARGV  2  its key
--       3  the record's outcome, 4 its fixed part
--
-- Answers 1 when it was there, else 0.

local key, outcome, fixed = arg(), arg(), arg()
local old = setting(key)
if not old then return 0 end
call('HDEL', base .. 'settings', key)
call('HDEL', base .. 'setting:notes', key)
call('ZREM', base .. 'setting:keys', key)
append(now, struct.pack('<i8I2c0I4c0I4c0', old.revision, #outcome, outcome, #old.value, old.value, 0, '') .. fixed)
return 1
