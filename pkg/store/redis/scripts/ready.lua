-- ready: tells which interests in one namespace have a due job. It writes nothing.
--
-- ARGV  2  number of interests; then for each: number of queues (0: all), queue …
--
-- Answers per interest {1 if ready, next run_at or 0}.

local out = {}
for i = 1, number() do
  local queues
  local n = number()
  if n > 0 then
    queues = {}
    for k = 1, n do queues[k] = arg() end
  end
  local ready = 0
  local ranks, by_rank
  if queues then
    ranks, by_rank = lanes_of(queues)
  else
    ranks = call('ZRANGE', base .. 'ranks', 0, -1)
  end
  for _, rank in ipairs(ranks) do
    if by_rank then
      for _, lane in ipairs(by_rank[rank]) do
        local front = call('ZSCORE', base .. 'f:' .. rank, lane)
        if front and tonumber(front) <= now then ready = 1 end
      end
    elseif #call('ZRANGEBYSCORE', base .. 'f:' .. rank, '-inf', digits(now), 'LIMIT', 0, 1) > 0 then
      ready = 1
    end
    if ready == 1 then break end
  end
  out[i] = { ready, next_at(queues) or 0 }
end
return out
