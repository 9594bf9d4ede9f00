-- trail: the audit trail of a space. A record is its number and time, and what
-- codec.go writes. trail has records by number, trail:at numbers by time.

local function append(at, rest)
  local n = call('HINCRBY', KEYS[1], 'records', 1)
  call('ZADD', base .. 'trail', n, struct.pack('<i8i8', n, at) .. rest)
  call('ZADD', base .. 'trail:at', at, digits(n))
end
