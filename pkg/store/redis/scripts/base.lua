-- base: what every script begins with.
--
-- KEYS 1  the record of a space: a namespace or the installation. All keys of a
--         space begin with the same bytes, hash tag included, so that a script
--         makes their names itself.
-- ARGV 1  the time in microseconds, or 0 for the server's clock
--
-- A script reads and checks everything before its first write: one that fails
-- keeps what it wrote.

local call = redis.call
local base = string.sub(KEYS[1], 1, -3) -- without "ns"

-- While a cluster moves the slot, keys that are missing here may be on the
-- other side. Asking for two that never exist fails on both sides then, before
-- anything was written.
call('EXISTS', base .. 'never:1', base .. 'never:2')

local now = tonumber(ARGV[1])
if now == 0 then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- Numbers come out of .. and tostring with 14 digits, which is too few for a time.
local function digits(n) return string.format('%.0f', n) end

local cursor = 2
local function arg()
  local v = ARGV[cursor]
  cursor = cursor + 1
  return v
end
local function number() return tonumber(arg()) end
local function optional()
  local v = arg()
  if v == '' then return nil end
  return tonumber(v)
end

-- in_force reads the quota document of the space and its revisions. A document
-- that differs from its copy in the record was written past the door.
local function in_force(field)
  local raw = call('HGET', base .. 'settings', field)
  local m = call('HMGET', KEYS[1], 'revision', 'raw', 'default')
  local q = { raw = raw, revision = tonumber(m[1] or 0), past = raw ~= m[2], default = 0 }
  q.fallback = tonumber(m[3] or 0)
  if not raw then q.default = q.fallback end
  return q
end

-- enter registers the space when the installation's default revision and term
-- come along, and reports whether it is registered.
local function enter(default, term)
  local m = call('HMGET', KEYS[1], 'known', 'default', 'term')
  if default == '' then return m[1] end
  call('HSET', KEYS[1], 'known', 1, 'default', math.max(tonumber(default), tonumber(m[2] or 0)),
    'term', math.max(tonumber(term), tonumber(m[3] or 0)))
  return true
end
