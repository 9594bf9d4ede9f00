-- relabel: moves jobs between lanes after the override of a task came or went.
--
-- Jobs are passed in the order of their ids, which nothing changes; those that
-- are made meanwhile have their lanes from the start. The field relabel of the
-- record is there as long as some are left, with - and the last id that was passed.

local RELABEL_BATCH = 500

local function relabelling() return call('HEXISTS', KEYS[1], 'relabel') == 1 end

-- relabel passes some jobs. It writes the indexes and reports whether some are left.
local function relabel(limit)
  local at = call('HGET', KEYS[1], 'relabel')
  if not at then return false end
  local from = at == '-' and '-' or '(' .. string.sub(at, 2)
  local ids = call('ZRANGEBYLEX', base .. 'live', from, '+', 'LIMIT', 0, limit)
  for _, id in ipairs(ids) do
    local j = head(id)
    if j and has(j.flags, LANED) ~= laned(j.task) then
      if j.state == PENDING then drop('p:' .. lane_of(j), id) end
      touched[lane_of(j)] = true
      j.flags = j.flags + (laned(j.task) and LANED or -LANED)
      if j.state == PENDING then put('p:' .. lane_of(j), time_of(j.run), id) end
      touched[lane_of(j)] = true
      call('SETRANGE', base .. 'j:' .. id, 2, string.char(j.flags))
    end
  end
  write_indexes()
  if #ids < limit then
    call('HDEL', KEYS[1], 'relabel')
    return false
  end
  call('HSET', KEYS[1], 'relabel', '-' .. ids[#ids])
  return true
end
