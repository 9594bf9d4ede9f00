-- putsetting: writes a setting and the audit record.
--
-- ARGV  2  its key
--       3  default revision and
--       4  term of the installation
--       5  the value
--       6  by whom
--       7  the record's outcome, 8 its fixed part
--
-- Answers {revision, updated}.

local key, default, term, value, by, outcome, fixed = arg(), arg(), arg(), arg(), arg(), arg(), arg()
local old = setting(key)
local revision, before = 1, ''
if old then revision, before = old.revision + 1, old.value end

enter(default, term)
call('HSET', KEYS[1], 'used', 1)
call('HSET', base .. 'settings', key, value)
call('HSET', base .. 'setting:notes', key, digits(revision) .. ' ' .. digits(now) .. ' ' .. by)
call('ZADD', base .. 'setting:keys', 0, key)
append(now, struct.pack('<i8I2c0I4c0I4c0', revision, #outcome, outcome, #before, before, #value, value) .. fixed)
return { revision, now }
