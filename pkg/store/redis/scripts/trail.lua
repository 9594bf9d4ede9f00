-- trail: the audit trail of a space. A record is its number and time, and what
-- codec.go writes. trail has records by number, trail:at numbers by time.

local function append(at, rest)
  local n = call('HINCRBY', KEYS[1], 'records', 1)
  call('ZADD', base .. 'trail', n, struct.pack('<i8i8', n, at) .. rest)
  call('ZADD', base .. 'trail:at', at, digits(n))
end

-- append_count writes the record of something that was done to n objects.
local function append_count(outcome, what, n, fixed)
  local new = '{"' .. what .. '":' .. digits(n) .. '}'
  append(now, struct.pack('<i8I2c0I4I4c0', 0, #outcome, outcome, 0, #new, new) .. fixed)
end
