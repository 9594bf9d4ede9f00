-- bucket: the token bucket of package quota, exact in double precision. Its
-- level is kept as whole tokens and a part in microseconds of the unit, because
-- their product may need 62 bits.

local UNITS = { [115] = 1000000, [109] = 60000000, [104] = 3600000000 } -- s, m, h

local function read_bucket()
  local m = call('HMGET', KEYS[1], 'rate_count', 'rate_unit', 'tokens', 'part', 'filled_at')
  return { count = tonumber(m[1] or 0), unit = tonumber(m[2] or 0), tokens = tonumber(m[3] or 0),
    part = tonumber(m[4] or 0), at = tonumber(m[5] or 0) }
end

local function save_bucket(b)
  call('HSET', KEYS[1], 'rate_count', b.count, 'rate_unit', b.unit, 'tokens', b.tokens, 'part', b.part, 'filled_at', b.at)
end

-- arrived is count × elapsed as whole tokens and part. elapsed is at most the
-- unit; it is split so that no product passes 2^53.
local function arrived(count, elapsed, unit)
  local high = count * math.floor(elapsed / 65536)
  local low = count * (elapsed % 65536)
  local rest = (high % unit) * 65536
  local part = rest % unit + low % unit
  local tokens = math.floor(high / unit) * 65536 + math.floor(rest / unit) + math.floor(low / unit) + math.floor(part / unit)
  return tokens, part % unit
end

local function clamp(b)
  if b.tokens >= b.count then b.tokens, b.part = b.count, 0 end
  return b
end

-- refill is the bucket as it stands now under a rate.
local function refill(b, count, unit)
  if b.count == 0 then return { count = count, unit = unit, tokens = count, part = 0, at = now } end
  local length = UNITS[b.unit]
  local tokens, part = arrived(b.count, math.min(math.max(0, now - b.at), length), length)
  part = part + b.part
  local r = clamp({ count = b.count, unit = b.unit, tokens = b.tokens + tokens + math.floor(part / length), part = part % length, at = now })
  if r.count == count and r.unit == unit then return r end
  local to = UNITS[unit]
  if to >= length then
    r.part = r.part * (to / length)
  else
    r.part = math.floor(r.part / (length / to))
  end
  r.tokens = r.tokens + math.max(0, count - r.count)
  r.count, r.unit = count, unit
  return clamp(r)
end
