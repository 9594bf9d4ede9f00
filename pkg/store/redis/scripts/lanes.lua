-- lanes: finding due jobs in the order rank, run_at, id.

local DUE_LANES = 256 -- lanes with due jobs in which the next later job is looked for

-- lanes_of lists the lanes of some queues by rank, each list in any order; all
-- queues when the list is nil.
local function lanes_of(queues)
  local by_rank, ranks = {}, {}
  for _, q in ipairs(queues) do
    for _, lane in ipairs(call('ZRANGEBYLEX', base .. 'lanes', '[' .. q .. '\0', '(' .. q .. '\1')) do
      local rank = string.sub(lane, -3)
      if not by_rank[rank] then
        by_rank[rank] = {}
        ranks[#ranks + 1] = rank
      end
      table.insert(by_rank[rank], lane)
    end
  end
  table.sort(ranks)
  return ranks, by_rank
end

-- next_of is the first run_at in the future in a lane, nil when there is none.
local function next_of(lane)
  local r = call('ZRANGEBYSCORE', base .. 'p:' .. lane, '(' .. digits(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return r[2] and tonumber(r[2])
end

local function earlier(a, b)
  if not a or b and b < a then return b end
  return a
end

-- next_at is the first run_at in the future in some queues, or in all; only in
-- lanes that are open, when the function is given.
local function next_at(queues, open)
  local first
  if queues then
    local ranks, by_rank = lanes_of(queues)
    for _, rank in ipairs(ranks) do
      for _, lane in ipairs(by_rank[rank]) do
        if not open or open(lane) then first = earlier(first, next_of(lane)) end
      end
    end
    return first
  end
  if open then
    for _, lane in ipairs(call('ZRANGE', base .. 'lanes', 0, -1)) do
      if open(lane) then first = earlier(first, next_of(lane)) end
    end
    return first
  end
  for _, rank in ipairs(call('ZRANGE', base .. 'ranks', 0, -1)) do
    local fronts = base .. 'f:' .. rank
    local later = call('ZRANGEBYSCORE', fronts, '(' .. digits(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    first = earlier(first, later[2] and tonumber(later[2]))
    for _, lane in ipairs(call('ZRANGEBYSCORE', fronts, '-inf', digits(now), 'LIMIT', 0, DUE_LANES)) do
      first = earlier(first, next_of(lane))
    end
  end
  return first
end
