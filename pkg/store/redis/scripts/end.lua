-- end: ends attempts of one namespace as package job decided, where nothing
-- happened since: the lease is the same and still over, and so is what is said of
-- a cancellation.
--
-- ARGV  2  number of attempts; then for each
--            id, lease, 1 if cancellation was requested, state, attempt, 1 if it keeps its turn, delay in µs, error
--
-- Answers per attempt 1 when it was ended, else 0.

have_counts()
local out, lost = {}, false
for i = 1, number() do
  local id, lease, cancelling, state, attempt, keeps, delay, text = arg(), arg(), arg() == '1', number(), number(), arg() == '1', number(), arg()
  local j = head(id)
  local ends = tonumber(call('ZSCORE', base .. 'running', id) or 0)
  out[i] = 0
  if not j then
    call('ZREM', base .. 'running', id) -- index entries without their job
    call('ZREM', base .. 'live', id)
    call('HDEL', base .. 'workers', id)
    lost = true
  elseif j.state == RUNNING and j.lease == lease and ends <= now and has(j.flags, CANCELLING) == cancelling then
    j.attempt = attempt
    if state == PENDING and not keeps then j.run = raw_time(now + delay) end
    move(j, state, text)
    out[i] = 1
  end
end
write_indexes()
if lost then -- of which queue and task they were is not known any more
  call('HDEL', KEYS[1], 'counted')
  have_counts()
  write_indexes()
end
return out
