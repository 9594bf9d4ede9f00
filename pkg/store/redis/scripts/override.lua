-- override: replaces or clears one override and writes the audit record.
--
-- ARGV  2  default revision and
--       3  term of the installation
--       4  its field
--       5  1 and
--       6  max_concurrent or empty
--       7  1 if paused
--       8  what else is set, as overrides.go writes it; or 0 and three empty to clear it
--       9  by whom
--      10  the record's fixed part
--
-- Answers 0 when there is none to clear, 1 when done, 2 when jobs have to move between lanes.

local default, term = arg(), arg()
local field, set, most, pause, text, by, fixed = arg(), arg() == '1', arg(), arg(), arg(), arg(), arg()

local function holds(value)
  local m, p = string.match(value, '^(%-?%d*);(%d)')
  return m ~= '' or p == '1'
end
-- text_of is the part of a value that the trail shows.
local function text_of(value)
  local n, rest = string.match(value, '^%-?%d*;%d;%d+;(%d+);(.*)$')
  return string.sub(rest, tonumber(n) + 1)
end

local old = call('HGET', base .. 'overrides', field)
if not set and not old then return 0 end

enter(default, term)
local value = most .. ';' .. pause .. ';' .. digits(now) .. ';' .. #by .. ';' .. by .. text
if set then
  call('HSET', base .. 'overrides', field, value)
else
  call('HDEL', base .. 'overrides', field)
end
local before = old and text_of(old) or ''
append(now, struct.pack('<i8I2c0I4c0I4c0', 0, 2, 'ok', #before, before, #text, text) .. fixed)
if string.sub(field, 1, 5) ~= 'task:' or (old and holds(old) or false) == (set and holds(value)) then return 1 end
call('HSET', KEYS[1], 'relabel', '-')
return 2
