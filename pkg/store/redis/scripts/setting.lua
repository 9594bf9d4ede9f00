-- setting: what is kept of an operator's setting: its value under its key among
-- the documents, its revision, time and author in setting:notes, and its place in
-- setting:keys, by key.

local function setting(key)
  local value, note = call('HGET', base .. 'settings', key), call('HGET', base .. 'setting:notes', key)
  if not value or not note then return nil end
  local revision, at, by = string.match(note, '^(%d+) (%d+) (.*)$')
  return { value = value, revision = tonumber(revision), at = tonumber(at), by = by }
end
