-- put: replaces or clears the quota document of a space and writes the audit record.
--
-- ARGV  2  its field
--       3  default revision and
--       4  term of the installation
--       5  revision that it must have (0: no document may exist), or empty
--       6  1 and
--       7  the document, or 0 and empty to clear it
--       8  by whom
--       9  count and
--      10  letter of the document's rate, or 0
--      11  the record's outcome when it is done, 12 when it is refused, 13 its fixed part
--
-- Answers {1 if done, 1 if there is a document, document, revision, default revision, updated, by}.

local field, default, term = arg(), arg(), arg()
local must, set, raw, by, count, unit = optional(), arg() == '1', arg(), arg(), number(), number()
local done, refused, fixed = arg(), arg(), arg()

local q = in_force(field)
local bucket = count > 0 and refill(read_bucket(), count, unit)
local matches = true
if must == 0 then
  matches = not q.raw
elseif must then
  matches = must == q.revision
end

enter(default, term)
local revision = q.revision
if matches then
  -- What was written past the door has had the next number.
  revision = revision + (q.past and 2 or 1)
  if set then
    call('HSET', base .. 'settings', field, raw)
    call('HSET', KEYS[1], 'raw', raw)
  else
    call('HDEL', base .. 'settings', field)
    call('HDEL', KEYS[1], 'raw')
  end
  call('HSET', KEYS[1], 'used', 1, 'revision', revision, 'updated_at', now, 'updated_by', by)
  if bucket then save_bucket(bucket) end
end
local old, outcome = q.raw or '', matches and done or refused
append(now, struct.pack('<i8I2c0I4c0I4c0', revision, #outcome, outcome, #old, old, #raw, raw) .. fixed)

local m = call('HMGET', KEYS[1], 'default', 'updated_at', 'updated_by')
local stored = call('HGET', base .. 'settings', field)
return { matches and 1 or 0, stored and 1 or 0, stored or '', revision, tonumber(m[1] or 0), tonumber(m[2] or 0), m[3] or '' }
